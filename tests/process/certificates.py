"""Certificates and files of tenants for tests, made in a folder by the openssl program."""

import hashlib
import json
import os
import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)


def make_authority(folder, name="ca"):
    """Makes an authority: NAME.pem and NAME.key."""
    _openssl(folder, "req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={name}",
             "-keyout", f"{name}.key", "-out", f"{name}.pem")


def make_certificate(folder, name, authority="ca", expired=False):
    """Makes NAME.pem and NAME.key, signed by the authority, for 127.0.0.1."""
    _openssl(folder, "req", *KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
             "-out", f"{name}.csr")
    with open(os.path.join(folder, f"{name}.ext"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    # -days counts from now and may be negative: such a certificate has expired.
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
             "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "-1" if expired else "1",
             "-extfile", f"{name}.ext", "-out", f"{name}.pem")


def write_tenants(path, tokens, limits=None):
    """Replaces the file of --tenants atomically. tokens: by tenant; the one named root is admin."""
    tenants = [{"name": tenant, "token_sha256": [hashlib.sha256(token.encode()).hexdigest()],
                "admin": tenant == "root", "limits": (limits or {}).get(tenant, {})}
               for tenant, token in tokens.items()]
    with open(f"{path}.new", "w") as file:
        json.dump({"tenants": tenants}, file)
    os.replace(f"{path}.new", path)
