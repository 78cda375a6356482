"""What a command line may ask of a box, and how it travels."""

import stat
from pathlib import Path

import pytest

from coordinator.commands.box_flags import box_options
from coordinator.errors import ConfigError
from coordinator.session.box_options import inside, read_env, read_files, read_hosts
from worker.contract.extras import ENV_FILE, FILES_DIR, BoxExtras

VALUE = "value-that-is-secret"


def test_nothing_asked_is_nothing_sent(tmp_path: Path) -> None:
    options = box_options()
    assert options.extras.model_dump(exclude={"setup_hosts"}) == BoxExtras().model_dump(exclude={"setup_hosts"})
    options.lay_out(tmp_path)
    assert not list(tmp_path.iterdir())


def test_values_come_by_name_by_value_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# words\n\nexport A=1\nB=\"two words\"\nC='x'\nD=a=b\n")
    values = read_env(["HERE", "E=", "A=9"], [file], {"HERE": VALUE})
    assert values == {"A": "9", "B": "two words", "C": "x", "D": "a=b", "HERE": VALUE, "E": ""}


@pytest.mark.parametrize("given", ["MISSING", "1A=x", "A B=x", "=x", "OPENAI_API_KEY", "SANDHOG_REDIS_URL", "A=a\0b"])
def test_a_variable_that_cannot_be_is_refused_without_its_value(given: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_env([given], [], {"OPENAI_API_KEY": VALUE, "SANDHOG_REDIS_URL": VALUE})
    assert VALUE not in str(refused.value)


def test_a_variable_with_which_no_command_begins_is_refused() -> None:
    assert read_env(["A=" + "x" * 131_069], [], {}), "with its name and the NUL it is just short enough"
    with pytest.raises(ConfigError, match="A has 131073 bytes, and a command can be given 131072"):
        read_env(["B=x", "A=" + "x" * 131_070], [], {})


def test_a_file_with_another_line_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(f"A=1\n{VALUE}\n")
    with pytest.raises(ConfigError, match="line 2") as refused:
        read_env([], [file], {})
    assert VALUE not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_env([], [tmp_path / "none"], {})


def test_values_travel_in_a_file_for_the_owner_only_and_are_forgotten(tmp_path: Path) -> None:
    options = box_options(env=[f"TOKEN={VALUE}"])
    assert options.extras.env_names == ("TOKEN",)
    assert VALUE not in options.extras.model_dump_json()
    assert VALUE not in repr(options)
    options.lay_out(tmp_path)
    path = tmp_path / ENV_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert VALUE in path.read_text()
    options.forget(tmp_path)
    options.forget(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize(
    "host", ["example.org", "*.example.org", "example.org:8443", "a_b.example:80,443", "*", "*:8080"]
)
def test_a_host_is_taken_as_given(host: str) -> None:
    assert read_hosts([host], "--allow-host") == (host,)


@pytest.mark.parametrize(
    "host",
    ["", "http://example.org", "example.org/", "127.0.0.1", "[::1]", "::1", "a b", "example.org:", "x:80:90", "**"],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        read_hosts([host], "--allow-host")


def test_files_go_inside_the_workspace_only(tmp_path: Path) -> None:
    source = tmp_path / "with:colon"
    source.write_text("x")
    source.chmod(0o755)
    files, sources = read_files([f"{source}:in/it", f"{source}:/workspace/other"])
    assert [(file.path, file.is_executable) for file in files] == [("in/it", True), ("other", True)]
    assert sources == (source, source)
    options = box_options(put_file=[f"{source}:in/it"])
    options.lay_out(tmp_path)
    assert (tmp_path / FILES_DIR / "0").read_text() == "x"
    for place in ("", "/", "/etc/passwd", "../up", "a/../../b", "/workspace", "/workspace/../etc/x"):
        with pytest.raises(ConfigError, match="no path inside"):
            read_files([f"{source}:{place}"])
    for given in ("nothing", f"{tmp_path}:a", f"{tmp_path}/missing:a"):
        with pytest.raises(ConfigError, match="SRC:DST"):
            read_files([given])
    with pytest.raises(ConfigError, match="same place"):
        read_files([f"{source}:a", f"{source}:./a"])


def test_paths_of_the_workspace_are_made_relative() -> None:
    assert inside("/workspace/a/b", "--x") == "a/b"
    assert inside("./a//b", "--x") == "a/b"


def test_set_up_reaches_what_its_flags_say(tmp_path: Path) -> None:
    assert box_options(setup=["true"]).extras.setup_hosts == ("*",)
    assert box_options(setup=["true"], setup_network=["none"]).extras.setup_hosts == ()
    wanted = ["packages.example", "files.packages.example"]
    assert box_options(setup=["true"], setup_network=wanted).extras.setup_hosts == tuple(wanted)
    with pytest.raises(ConfigError, match="there is no --setup"):
        box_options(setup_file=["lock"])
    with pytest.raises(ConfigError, match="no file"):
        box_options(dockerfile=tmp_path / "Dockerfile")
    (tmp_path / "Dockerfile").write_text("FROM x")
    built = box_options(dockerfile=tmp_path / "Dockerfile").extras
    assert (built.dockerfile, built.context) == (str(tmp_path / "Dockerfile"), str(tmp_path))
