""".ci/setup finds what the commands need, or installs it, or says how; here with an apt-get that only takes notes."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "setup"
# Both write more after the line that is looked for, as the real ones do: a reader that ends early would end them.
JAVA = "#!/bin/sh\necho 'openjdk version \"{}\"' >&2\nsleep 0.1\necho 'OpenJDK Runtime Environment' >&2\n"
POLICY = "echo 'Candidate: 1'; sleep 0.1; echo 'Version table:'"


@pytest.fixture
def setup(tmp_path):
    """Run a copy of the script where nothing is installed except for `commands`: names, and what they do."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    (bin_ := tmp_path / "bin").mkdir()
    for name in ("bash", "sh", "env", "dirname", "grep", "mkdir", "rm", "paste", "cp", "sleep"):
        (bin_ / name).symlink_to(str(shutil.which(name)))

    def run(*tools, commands=(), **environment):
        for name, text in dict(commands).items():
            write(bin_ / name, text)
        done = subprocess.run(
            [bin_ / "bash", tmp_path / ".ci" / "setup", *tools],
            env={"PATH": str(bin_), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def test_what_is_there_is_not_installed(setup):
    assert setup("npm", commands={"npm": "#!/bin/sh\n"}) == (0, "", "")


def test_a_system_without_apt_gets_the_names_and_on_fedora_the_command(setup):
    status, _, error = setup("npm", "java")
    assert (status, error) == (1, "error: missing: npm java. Install them, then run this again.\n")
    status, _, error = setup("npm", "java", commands={"dnf": "#!/bin/sh\n"})
    assert (status, "sudo dnf install nodejs-npm java-21-openjdk-headless" in error) == (1, True)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_a_named_java_that_is_too_old_is_refused_instead_of_passed_over(setup, tmp_path, version):
    write(tmp_path / "home" / "bin" / "java", JAVA.format(version))
    status, _, error = setup("java", JAVA_HOME=str(tmp_path / "home"))
    assert (status, "expected Java 17 or newer, found none at JAVA_HOME=" in error) == (1, True)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_fits_is_taken(setup, version):
    assert setup("java", commands={"java": JAVA.format(version)}) == (0, "", "")


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13", "python3"])
def test_a_python_that_fits_is_taken_for_the_environment(setup, tmp_path, name):
    """`name` notes what it is called with, and fits."""
    noting = f"#!/bin/sh\necho $1 >> {tmp_path}/called\n"
    assert setup("python", commands={name: noting}) == (0, "· creating .venv\n", "")
    assert "-m" in (tmp_path / "called").read_text().split()


def test_a_named_python_that_does_not_fit_is_refused(setup):
    python = '#!/bin/sh\ntest "$1" = -c && exit 1\necho Python 3.9.1\n'
    status, _, error = setup("python", commands={"old": python}, PYTHON="old")
    assert (status, "expected Python 3.11, 3.12 or 3.13" in error, "Python 3.9.1 at PYTHON=old" in error) == (
        1,
        True,
        True,
    )


def apt(tmp_path, user):
    """An apt that knows openjdk-21-jre-headless and npm, and installs java and npm."""
    java = tmp_path / "java"
    write(java, JAVA.format("21"))
    return {
        "id": f"#!/bin/sh\necho {user}\n",
        "apt-cache": "#!/bin/sh\nfor name; do :; done\n"
        f"case $name in openjdk-17* | make) ;; *) {POLICY} ;; esac\n",
        "apt-get": f'#!/bin/sh\necho "$@" >> {tmp_path}/notes\n'
        f"case $* in *install*) cp {java} {tmp_path}/bin/java; cp {java} {tmp_path}/bin/npm;; esac\n",
    }


def test_root_gets_the_packages_that_apt_knows_and_is_told_first(setup, tmp_path):
    status, said, error = setup("npm", "java", commands=apt(tmp_path, 0))
    assert (status, error) == (0, "")
    assert said == "· installing npm java from the packages of this system\n"
    update, install = (tmp_path / "notes").read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("nodejs npm openjdk-21-jre-headless")


def test_another_user_gets_the_command_for_what_only_root_can_install(setup, tmp_path):
    status, _, error = setup("npm", commands=apt(tmp_path, 1000))
    assert (status, "sudo apt-get install nodejs npm" in error) == (1, True)
    assert "install" not in (tmp_path / "notes").read_text().replace("lists", "")
    assert not (tmp_path / ".local" / "apt").exists()


def test_a_tool_that_apt_does_not_know_is_named(setup, tmp_path):
    status, _, error = setup("make", commands=apt(tmp_path, 0))
    assert (status, "apt-get knows no package of make" in error) == (1, True)
    assert "install" not in (tmp_path / "notes").read_text()
