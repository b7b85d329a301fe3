# What is said of a name that isn't known.

from __future__ import annotations

from gateway.name_hints import find_nearest_name, name_hint

KNOWN = ("publishRateInBytes", "publishRateInMsgs", "user")


def test_the_nearest_name_is_suggested_whatever_its_case() -> None:
    assert find_nearest_name("publishRateInByte", KNOWN) == "publishRateInBytes"
    assert find_nearest_name("PUBLISHRATEINMSGS", KNOWN) == "publishRateInMsgs"
    assert find_nearest_name("usr", KNOWN, cutoff=0.9) is None


def test_all_names_are_suggested_where_none_is_near() -> None:
    assert name_hint("usr", KNOWN) == "did you mean user?"
    assert name_hint("zzz", KNOWN) == "known here: publishRateInBytes, publishRateInMsgs, user"
