"""A real server process: killed under load, started again, asked by a client that nobody here wrote, stopped."""

import concurrent.futures
import datetime
import ipaddress
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from federation import lives, stream

from acclimate.serving.replay import replay
from acclimate.serving.tokens import create

CODE = "from acclimate.cli.main import main; main()"


@pytest.fixture
def folders(tmp_path):
    for live in lives():
        live.save(tmp_path / "live" / f"client-{live.client}")
    return tmp_path / "live"


class Server:
    """A server process, at a free port."""

    def __init__(self, live, *more, clients="4 clients"):
        command = [sys.executable, "-c", CODE, "serve", str(live), "--name", "digits", "--port", "0", *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        line = self.process.stdout.readline()
        found = re.fullmatch(rf"serving digits, {clients}, at (https?://127\.0\.0\.1:\d+)\n", line)
        assert found, line + self.process.stderr.read()
        self.url = found[1]

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=250)
        assert self.process.returncode == 0, err
        return dict(re.findall(r"client (\d+)  (\w{64})", out)), [json.loads(line) for line in err.splitlines()]


def body(x, id):
    one = {"name": "input", "shape": list(x.shape), "datatype": "UINT8", "data": x.flatten().tolist()}
    return {"id": id, "inputs": [one]}


def places(got):
    """The numbers that a client's samples had, in the order in which it asked."""
    return [next(o for o in json.loads(text)["outputs"] if o["name"] == "ids")["data"][0] for text in got.values()]


def ask_in_order(server, number, answered, over):
    """One client: it repeats what was not answered, to whichever process there is."""
    with httpx.Client(timeout=30) as http:
        for i in range(100_000):
            sent = body(stream(number, 90)[i % 90 : i % 90 + 1], f"r{i}")
            while f"r{i}" not in answered:
                try:
                    reply = http.post(f"{server[0].url}/v2/models/digits/versions/{number}/infer", json=sent)
                    assert reply.status_code == 200, reply.text
                    answered[f"r{i}"] = reply.text
                except httpx.TransportError:
                    time.sleep(0.02)
            if over.is_set():
                return


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_kills_under_load_lose_and_double_nothing(folders, kills):
    server, answered, over = [Server(folders)], {c: {} for c in range(4)}, threading.Event()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask_in_order, server, c, answered[c], over) for c in range(4)]
        try:
            for kill in range(1, kills + 1):
                while sum(map(len, answered.values())) < 15 * kill:
                    assert not any(one.done() for one in running)
                    time.sleep(0.01)
                server[0].kill()
                server[0] = Server(folders)
        finally:
            over.set()
        for one in running:
            one.result(timeout=250)
    for number, got in answered.items():  # sample i has the number i: none was taken twice, none left out
        assert places(got) == [f"{number}-{i}" for i in range(len(got))]
        sent = body(stream(number, 90)[:1], "r0")  # whoever asks again gets the same, from before any kill too
        again = httpx.post(f"{server[0].url}/v2/models/digits/versions/{number}/infer", json=sent, timeout=30)
        assert again.text == got["r0"]
    check_with_tritonclient(server[0], {c: len(got) for c, got in answered.items()})
    digests, lines = server[0].stop()
    assert next(line for line in lines if line["event"] == "refused")["status"] == 404
    done = replay(folders / "serving")
    assert done.exact and {str(c): d for c, d in done.digests.items()} == digests
    assert done.requests == sum(map(len, answered.values())) + 2 >= 17


def test_one_client_is_one_client(folders):
    Server(folders / "client-2", clients="1 client").kill()


def check_with_tritonclient(server, before):
    """A client that nobody here wrote: it sends raw bytes, or JSON."""
    triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'", exc_type=ImportError)
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits", "1")
    about = client.get_model_metadata("digits")
    assert about["inputs"][0]["shape"] == [-1, 3, 16, 16] and about["versions"] == ["0", "1", "2", "3"]
    for binary, i in ((True, 0), (False, 1)):
        x = stream(1, 6)[3 * i : 3 * i + 3]
        given = triton.InferInput("input", list(x.shape), "UINT8")
        given.set_data_from_numpy(x.numpy(), binary_data=binary)
        result = client.infer("digits", [given], model_version="1", request_id=f"t{i}")
        p = result.as_numpy("probabilities")
        assert p.shape == (3, 10) and np.abs(p.sum(1) - 1).max() < 1e-5
        assert result.as_numpy("classes").tolist() == p.argmax(1).tolist()
        ids = [v.decode() if isinstance(v, bytes) else v for v in result.as_numpy("ids")]
        assert ids == [f"1-{before[1] + 3 * i + j}" for j in range(3)]
        assert result.get_response()["id"] == f"t{i}"
    with pytest.raises(triton.InferenceServerException, match="client: '9' must be one of 0, 1, 2, 3"):
        client.infer("digits", [given], model_version="9")
    client.close()


@pytest.mark.slow
def test_tls_and_tokens_of_a_real_server(folders, tmp_path):
    x509 = pytest.importorskip("cryptography.x509", reason="pip install cryptography", exc_type=ImportError)
    certificate, key = self_signed(x509, tmp_path)
    drawn = create(tmp_path / "tokens.json", [0, 1, 2, 3])
    more = ("--tokens", str(tmp_path / "tokens.json"), "--certificate", str(certificate), "--key", str(key))
    server = Server(folders, *more)
    try:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        at = f"{server.url}/v2/models/digits/versions/2/infer"
        with httpx.Client(verify=trusted, timeout=30) as http:
            sent = body(stream(2, 1), "a")
            assert http.post(at, json=sent).status_code == 401
            mine = {"Authorization": f"Bearer {drawn['2']}"}
            assert http.post(at, json=sent, headers=mine).status_code == 200
        with pytest.raises(httpx.ConnectError, match="(?i)certificate"):
            httpx.get(f"{server.url}/v2")
    finally:
        digests, lines = server.stop()
    assert len(digests) == 4
    assert not any(token in json.dumps(lines) for token in drawn.values())


def self_signed(x509, folder):
    """A certificate for this machine, and its key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = (
        made.serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    )
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = made.add_extension(local, critical=True).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, plain[1], plain[0]))
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"
