from hpcdl.run.run_folder import CLEAR, progress_line


def test_the_line_is_shorter_than_the_terminal_and_keeps_the_time_left():
    for columns in [40, 80, 120]:
        line = progress_line(2, 4, "a-case-of-a-long-name" * 9, 10.0, 2, columns).removeprefix(CLEAR)
        assert len(line) == columns - 1
        assert columns == 40 or line.endswith("...  12 cases/min, 10 s left")


def test_time_left_is_that_of_the_finished_cases():
    for number, seconds, finished, end in [
        (2, 10.0, 2, "12 cases/min, 10 s left"),
        (3, 900.0, 2, "0.133 cases/min, 8 min left"),  # one case is of an earlier job
        (1, 7200.0, 1, "0.00833 cases/min, 6 h left"),
    ]:
        line = progress_line(number, 4, "ring", seconds, finished)
        assert line.startswith(f"{CLEAR}[")
        assert line.endswith(f"{number}/4 ring  {end}")
