"""Site profiles: where they lie, what they hold, and what is refused."""

import pytest

from hpcdl.exit_codes import UsageError
from hpcdl.launch.batch_script import places, site_profile


def test_a_users_profile_comes_before_the_systems(tmp_path):
    environment = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "etc")}
    user, system = places(environment)
    for path, partition in ((system, "all"), (user, "mine")):
        path.parent.mkdir(parents=True)
        path.write_text(f'partition = "{partition}"\n')
        assert site_profile(environment=environment).partition == partition


def test_a_wrong_profile_is_refused_in_one_line(tmp_path):
    path = tmp_path / "site.toml"
    for text, message in {
        'partitoin = "p"': "partitoin: unknown key; did you mean 'partition'?",
        "account = 3": "account: must be text of one line, not 3",
        "launcher = ''": "launcher: must be text of one line, not ''",
        'modules = ["a", 1]': "modules: must be text of one line, not 1",
        'environment = "a\\nb"': "environment: must be text of one line",
        "a = ": "not TOML",
    }.items():
        path.write_text(text)
        with pytest.raises(UsageError, match=r"site\.toml: ") as refused:
            site_profile(path)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
