"""tools/run-tests tells at the end of its output which case failed and why: often no more than that end can be seen."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
CASES = """
import pytest
def test_good():
    print("a passed test's output")
def test_bad():
    print("printed before")
    assert 1 + 1 == 3, "sums"
@pytest.fixture
def broken():
    raise OSError("no machine")
def test_setup(broken):
    pass
@pytest.mark.parametrize("i", range(100))
def test_many(i):
    assert i < 3, "too many"
"""
PROGRAM = r"""
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
static void good(void **state) { (void)state; }
static void bad(void **state) { (void)state; assert_int_equal(41, 42); }
static void gone(void **state) { (void)state; print_message("last words\n"); _Exit(7); }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(bad), cmocka_unit_test(gone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
"""


def run(tmp_path, *suites):
    p = subprocess.run([ROOT / "tools/run-tests", "--log", tmp_path / "log", *suites], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    return p.returncode, p.stdout.rstrip("\n").split("\n")


def test_each_case_that_failed_is_told_before_the_last_line(tmp_path):
    (tmp_path / "test_x.py").write_text(CASES.partition("@pytest.mark.param")[0])
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run([os.environ.get("CC", "gcc").split()[-1], "-o", tmp_path / "test_p", tmp_path / "p.c", "-lcmocka"], check=True)
    rc, lines = run(tmp_path, "run:say:echo so it is; exit 3", "pytest:py:test_x.py", f"unit:unit:{tmp_path}/test_p", "pytest:none:absent.py")
    assert rc == 1 and lines[-1] == "2 passed, 6 failed"
    end = "\n".join(lines[lines.index("failed:"):])
    for part in ("say: exit 3", "so it is", "py: test_x::test_bad", "printed before", "assert (1 + 1) == 3", "py: test_x::test_setup", "OSError: no machine",
                 "unit test_p: bad", "0x29 != 0x2a", "unit test_p: gone ended the program (exit 7)", "last words", "none: pytest: exit 4", "absent.py"):
        assert part in end, (part, end)
    assert "a passed test's output" not in "\n".join(lines)


def test_many_failures_are_told_in_few_lines(tmp_path):
    (tmp_path / "test_x.py").write_text(CASES)
    rc, lines = run(tmp_path, "pytest:py:test_x.py")
    assert rc == 1 and lines[-1] == "4 passed, 99 failed"
    assert len(lines) < 200 and sum("py: test_x::test_many[" in line for line in lines) > 50
