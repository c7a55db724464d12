"""Every conformance case is accounted for."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.case_table import ALL, ELSEWHERE, RULED, WAITING, cases_with_tests


def test_every_case_is_tested_or_waits_for_a_feature() -> None:
    assert sorted({*cases_with_tests(), *WAITING}) == sorted(ALL)


def test_no_case_is_both() -> None:
    assert not set(cases_with_tests()) & set(WAITING)


def test_rulings_are_about_tested_cases() -> None:
    assert set(RULED) <= set(cases_with_tests())
    assert set(ELSEWHERE) <= set(cases_with_tests())


def test_places_elsewhere_exist() -> None:
    for text in ELSEWHERE.values():
        place = Path(__file__).parents[2] / text.partition(":")[0]
        assert list(place.glob("test_*.py")), f"{place} has no tests"
