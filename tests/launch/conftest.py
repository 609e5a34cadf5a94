"""Machines as /proc and /sys describe them."""

import pytest


@pytest.fixture
def put(tmp_path):
    """put(path, text): write a file of the synthetic machine."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.fixture
def driver(tmp_path):
    """driver(card, name): make a network card's driver."""

    def link(card, name):
        device = tmp_path / f"sys/class/net/{card}/device"
        (tmp_path / "drivers" / name).mkdir(parents=True)
        device.mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / name)

    return link
