import pytest
from django.core.exceptions import ImproperlyConfigured

from config import environment


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch):
    def set_value(value: str) -> None:
        monkeypatch.setenv("SOME_SETTING", value)

    return set_value


@pytest.mark.parametrize("value", ["1", "true", "YES", " On "])
def test_a_flag_reads_the_usual_yes(setting, value: str):
    setting(value)

    assert environment.flag("SOME_SETTING", default=False) is True


def test_a_misspelt_flag_is_an_error_and_not_a_no(setting):
    setting("ture")

    with pytest.raises(ImproperlyConfigured, match=r"SOME_SETTING='ture'.*true or false"):
        environment.flag("SOME_SETTING", default=True)


def test_an_empty_value_counts_as_absent(setting):
    setting("  ")

    assert environment.flag("SOME_SETTING", default=True) is True
    assert environment.whole("SOME_SETTING", default=3, low=1, high=9) == 3
    assert environment.items("SOME_SETTING", default=("a",)) == ["a"]


@pytest.mark.parametrize("value", ["0", "10", "4.5", "four", "٤", "--4"])
def test_a_number_out_of_range_or_out_of_shape_is_an_error(setting, value: str):
    setting(value)

    with pytest.raises(ImproperlyConfigured, match="a whole number from 1 to 9"):
        environment.whole("SOME_SETTING", default=3, low=1, high=9)


def test_a_choice_names_what_would_be_accepted(setting):
    setting("LOUD")

    with pytest.raises(ImproperlyConfigured, match=r"'LOUD'.*one of DEBUG, INFO"):
        environment.choice("SOME_SETTING", default="INFO", choices=("INFO", "DEBUG"))


@pytest.mark.parametrize("value", ["mysql://x/y", "redis", "://x"])
def test_an_address_of_another_scheme_is_an_error(setting, value: str):
    setting(value)

    with pytest.raises(ImproperlyConfigured, match="redis://"):
        environment.url("SOME_SETTING", schemes=("redis",))


@pytest.mark.parametrize("value", ["Installer", "a..b", "a.b c", "a/b.c"])
def test_a_class_needs_a_dotted_path(setting, value: str):
    setting(value)

    with pytest.raises(ImproperlyConfigured, match="dotted path"):
        environment.dotted("SOME_SETTING", default="a.B")


@pytest.mark.parametrize("value", ["none", "None"])
def test_a_class_that_may_be_missing_is_left_out_by_a_word(setting, value: str):
    setting(value)

    assert environment.dotted_or_none("SOME_SETTING", default="a.B") == ""


def test_a_class_that_may_be_missing_has_its_default_and_needs_a_dotted_path(setting):
    setting("")
    assert environment.dotted_or_none("SOME_SETTING", default="a.B") == "a.B"
    assert environment.dotted_or_none("SOME_SETTING", default="none") == ""

    setting("Prober")
    with pytest.raises(ImproperlyConfigured, match="dotted path"):
        environment.dotted_or_none("SOME_SETTING", default="a.B")


def test_a_list_drops_blanks_and_empty_members(setting):
    setting(" a, ,b,")

    assert environment.items("SOME_SETTING") == ["a", "b"]
