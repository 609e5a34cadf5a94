import pytest

from hpcdl.report.formats.cells import digits, interval, percent, plural, rate, seconds, volume


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (digits(0.9534), "0.953"),
        (digits(1.0), "1.00"),
        (digits(12.345), "12.3"),
        (digits(999.9), "1000"),
        (digits(123456), "123456"),
        (digits(1.5e-7), "1.50e-07"),
        (digits(0), "0.00"),
        (digits(-3.14159), "-3.14"),
        (digits(None), "-"),
        (seconds(0), "0 s"),
        (seconds(8.5e-7), "850 ns"),
        (seconds(1.23456e-5), "12.3 us"),
        (seconds(0.9999), "1.00 s"),
        (seconds(0.0123), "12.3 ms"),
        (seconds(-0.0123), "-12.3 ms"),
        (seconds(59), "59.0 s"),
        (seconds(90), "1.50 min"),
        (seconds(7200), "2.00 h"),
        (seconds(None), "-"),
        (percent(0.0123, 0.5), "2.5 %"),
        (percent(1e-9, 1), "0.0 %"),
        (percent(None, 1), "-"),
        (percent(1, None), "-"),
        (volume(4), "4 B"),
        (volume(65536), "64 KiB"),
        (volume(2**30), "1 GiB"),
        (volume(1_000_001), "1.00 MB"),
        (rate(3.2e9), "3.20 GB/s"),
        (rate(999_900_000), "1.00 GB/s"),
        (rate(12), "12.0 B/s"),
        (interval(0.91, None), "-"),
        (interval(0.001, 0.002, seconds), "1.00 to 2.00 ms"),
        (interval(0.0009, 0.002, seconds), "900 us to 2.00 ms"),
        (interval(0.91, 0.97), "0.910 to 0.970"),
        (plural(1, "thread", " per rank"), "1 thread per rank"),
        (plural(0.5, "epoch"), "0.5 epochs"),
        (plural(None, "thread"), ""),
    ],
)
def test_numbers_as_people_read_them(shown, expected):
    assert shown == expected
