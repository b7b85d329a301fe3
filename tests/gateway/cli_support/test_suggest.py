# What is said of a name that isn't known.

from __future__ import annotations

from gateway.cli_support.suggest import hint, nearest

KNOWN = ("publishRateInBytes", "publishRateInMsgs", "user")


def test_the_nearest_name_is_suggested_whatever_its_case() -> None:
    assert nearest("publishRateInByte", KNOWN) == "publishRateInBytes"
    assert nearest("PUBLISHRATEINMSGS", KNOWN) == "publishRateInMsgs"
    assert nearest("usr", KNOWN, cutoff=0.9) is None


def test_all_names_are_suggested_where_none_is_near() -> None:
    assert hint("usr", KNOWN) == "did you mean user?"
    assert hint("zzz", KNOWN) == "known here: publishRateInBytes, publishRateInMsgs, user"
