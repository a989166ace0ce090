"""A test of many cases fails where one of them does, and says which."""

from __future__ import annotations

import pytest

from tests.each import each


def test_every_case_is_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tests.each import each

        @pytest.fixture(params=["x", "y"])
        def letter(request):
            return request.param

        class TestMethods:
            @each(("a", "b"), [(1, 2), (3, 4)])
            @each("c", [5, 6])
            def test_all(self, a, b, c, letter):
                print(f"ran-{a}{b}{c}{letter}")
        """
    )
    result = pytester.runpytest_inprocess("-s", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    ran = [f"ran-{ab}{c}{letter}" for letter in "xy" for ab in (12, 34) for c in (5, 6)]
    result.stdout.fnmatch_lines([f"*{text}" for text in ran])


@pytest.mark.parametrize(
    "body",
    [
        "assert case != 'two'",
        "case == 'two' and pytest.skip()",
        "with pytest.raises(KeyError): case == 'two' or {}[case]",
    ],
)
def test_a_case_that_fails(body: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from tests.each import each

        @each("case", ["one", "two", "three"], ids=str.upper)
        def test_all(case):
            print("ran-" + case)
            {body}
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: case TWO:*", "ran-one", "ran-two"])
    result.stdout.no_fnmatch_line("ran-three")


def test_no_case_is_no_test() -> None:
    with pytest.raises(AssertionError, match="there is no case"):
        each("case", [])


def test_ids_that_are_too_few() -> None:
    def test(case: int) -> None:
        pass

    with pytest.raises(ValueError):
        each("case", [1, 2], ids=["one"])(test)()
