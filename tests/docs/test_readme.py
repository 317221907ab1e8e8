"""README's commands, run as they stand against a cluster of `baton up`."""
import os
import re
import signal
import subprocess

import pytest

from conftest import BUILD, CACHE, ROOT, free_port, program


def commands():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"After `make up`:\n\n((?:    .*\n)+)", text)[1]
    joined = re.sub(r"^    ", "", block, flags=re.M).replace("\\\n", " ")
    return [line for line in joined.split("\n") if line]


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """(data folder, port): what `make up` keeps, elsewhere."""
    data, port = tmp_path_factory.mktemp("up"), free_port()
    run = lambda *a: subprocess.run([*map(str, a)], capture_output=True, text=True, timeout=240)  # noqa: E731
    try:
        r = run(program("baton"), "up", "--detach", "--data", data, "--port", port)
        assert r.returncode == 0, r
        kubectl = (CACHE / "bin/kubectl", "--kubeconfig", data / "kubeconfig")
        assert run(*kubectl, "apply", "-f", ROOT / "manifests/samples/chat.yaml").returncode == 0
        r = run(*kubectl, "wait", "infd/chat", "--for=condition=Ready", "--timeout=180s")
        assert r.returncode == 0, r
        yield data, port
    finally:
        run(program("baton"), "down", "--data", data)


def test_the_commands_after_make_up_work(up):
    data, port = up
    lines = commands()
    assert len(lines) >= 7 and lines[0].startswith("export ") and lines[-1] == "make down"

    def here(line):
        line = line.replace("$PWD/build/up", str(data)).replace("$HOME/.cache/baton", str(CACHE))
        return line.replace("build/bin/", f"{BUILD}/bin/").replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    said = {}
    for line in lines[1:-1]:
        live = line.endswith("baton status")
        p = subprocess.Popen(["bash", "-c", f"{here(lines[0])}\nexec {here(line)}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             cwd=ROOT, env={k: v for k, v in os.environ.items() if not k.startswith(("BATON_", "KUBE"))}, start_new_session=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # as a terminal gives it: a background job ignores it
        try:
            out, err = p.communicate(timeout=4 if live else 180)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGINT if live else signal.SIGKILL)
            out, err = p.communicate(timeout=10)
            assert live, f"{line}: no end"
        assert live or p.returncode == 0, f"{line}\n{out}\n{err}"
        said[line] = out + err

    def of(part):
        return next(text for line, text in said.items() if part in line)
    assert "chat-prefill" in of("kubectl get") and "scaled" in of("kubectl scale")
    assert "default/chat" in of("baton status") and "prefill" in of("baton status")
    assert "prefilled by chat-" in of("baton run") and "installing" not in of("baton run"), "the running cluster is asked, no other is started"
    assert '"chat.completion"' in of("curl ")


def test_make_up_keeps_what_the_readme_names():
    text = (ROOT / "tools/up").read_text() + (ROOT / "tools/targets.mk").read_text()
    for word in ("build/up", "8080", "manifests/samples/chat.yaml"):
        assert word in text
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "tools/targets.mk").read_text() + (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z]+)\b(?! is)", readme)) <= targets


def test_every_target_of_make_help_is_a_command_also_where_a_folder_has_its_name():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert len(targets) > 15
    for target in targets:
        out = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert out.returncode == 0 and f"'{target}' is up to date" not in out.stdout + out.stderr, (target, out.stdout[-300:], out.stderr[-300:])
