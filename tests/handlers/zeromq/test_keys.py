from __future__ import annotations

import stat

import pytest
import zmq

from trackside.events import ConfigError
from trackside.handlers.zeromq._keys import ROLES, load_accepted, load_client_keys, load_server_key, new_keys


class TestNewKeys:
    def test_one_pair_for_each_role(self, keys):
        """
        Each role gets a secret and a public file of the first generation.
        """
        expected = sorted(f"{role}.1.{kind}" for role in ROLES for kind in ("public", "secret"))

        assert sorted(path.name for path in keys.iterdir()) == expected

    def test_secrets_are_for_the_owner_alone(self, keys):
        """Under any umask, a secret is 0600 in a directory that is 0700."""
        modes = {stat.S_IMODE(path.stat().st_mode) for path in keys.glob("*.secret")}

        assert modes == {0o600}
        assert stat.S_IMODE(keys.stat().st_mode) == 0o700

    def test_public_is_the_half_of_the_secret(self, keys):
        """
        The two files of a key belong together.
        """
        secret = (keys / "rank.1.secret").read_bytes().strip()

        assert (keys / "rank.1.public").read_bytes().strip() == zmq.curve_public(secret)

    def test_second_time_is_a_new_generation(self, keys):
        """
        Making keys where there are some adds a generation and touches nothing.
        """
        before = (keys / "rank.1.secret").read_bytes()

        written = new_keys(keys, ["rank"])

        assert [path.name for path in written] == ["rank.2.secret", "rank.2.public"]
        assert (keys / "rank.1.secret").read_bytes() == before

    def test_planted_link_is_not_followed(self, keys, tmp_path):
        """A user who can put a symbolic link in the next secret's place does not get it written elsewhere."""
        (keys / "rank.2.secret").unlink(missing_ok=True)
        target = tmp_path / "elsewhere"
        (keys / "viewer.2.secret").symlink_to(target)

        new_keys(keys, ["viewer"])

        assert not target.exists()
        assert (keys / "viewer.3.secret").exists()

    def test_directory_open_to_others_is_refused(self, tmp_path):
        """Secrets are not written where others can read or replace them."""
        tmp_path.chmod(0o755)

        with pytest.raises(ConfigError, match="chmod 700"):
            new_keys(tmp_path)

    def test_unknown_role(self, tmp_path):
        """An unknown role is refused with a list of the known ones."""
        with pytest.raises(ConfigError, match="server, rank, viewer, control"):
            new_keys(tmp_path / "keys", ["admin"])


class TestLoading:
    def test_client_has_own_key_and_the_servers(self, keys):
        """
        A client gets its own pair and pins the server's public key.
        """
        loaded = load_client_keys(keys, "viewer")

        assert loaded.own.public == (keys / "viewer.1.public").read_bytes().strip()
        assert loaded.server == (keys / "server.1.public").read_bytes().strip()

    def test_first_role_that_is_there(self, keys):
        """A user who has only the control key may watch with it."""
        (keys / "viewer.1.secret").unlink()

        assert load_client_keys(keys, "viewer", "control").own.role == "control"

    def test_newest_generation(self, keys):
        """
        After a rotation the newest key is used.
        """
        new_keys(keys, ["server"])

        assert load_server_key(keys).generation == 2

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
    def test_secret_that_others_can_read_is_refused(self, keys, mode):
        """A secret that is readable by group or others is refused."""
        (keys / "rank.1.secret").chmod(mode)

        with pytest.raises(ConfigError, match="others can read this secret"):
            load_client_keys(keys, "rank")

    def test_missing_secret_says_what_to_do(self, keys):
        """A missing key is an error that names the role, and how to get one."""
        (keys / "rank.1.secret").unlink()

        with pytest.raises(ConfigError, match=r"it holds no rank\.1\.secret; make it with `trackside keys new`"):
            load_client_keys(keys, "rank")

    def test_missing_directory_says_what_to_do(self, tmp_path):
        """
        A directory that does not exist is an error of configuration, not of the system.
        """
        with pytest.raises(ConfigError, match="trackside keys new"):
            load_server_key(tmp_path / "none")

    def test_what_is_no_key_is_refused_without_being_shown(self, keys):
        """A damaged secret may be half of a good one, so errors print nothing of it."""
        path = keys / "rank.1.secret"
        half = path.read_text()[:20]
        path.write_text(half)

        with pytest.raises(ConfigError) as caught:
            load_client_keys(keys, "rank")

        assert half not in str(caught.value)
        assert half not in repr(caught.value)

    def test_repr_shows_no_secret(self, keys):
        """A pair that is printed, or in a traceback with its locals, shows no secret."""
        loaded = load_client_keys(keys, "control")

        assert repr(loaded.own.secret) not in repr(loaded)
        assert loaded.own.secret.decode() not in repr(loaded)


class TestAccepted:
    def test_two_generations(self, keys):
        """
        While a key is being replaced the old and the new one are accepted; the one before them is not.
        """
        first = (keys / "rank.1.public").read_bytes().strip()
        new_keys(keys, ["rank"])
        second = (keys / "rank.2.public").read_bytes().strip()
        assert {first, second} <= set(load_accepted(keys))

        new_keys(keys, ["rank"])

        third = (keys / "rank.3.public").read_bytes().strip()
        ranks = {key for key, role in load_accepted(keys).items() if role == "rank"}
        assert ranks == {second, third}

    def test_server_itself_is_no_client(self, keys):
        """
        The server's own key lets no peer in.
        """
        assert set(load_accepted(keys).values()) == {"rank", "viewer", "control"}


class TestDirectory:
    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    @pytest.mark.parametrize("load", [load_accepted, load_server_key, lambda where: load_client_keys(where, "rank")])
    def test_that_others_can_write_to(self, keys, load, mode):
        """
        A directory in which others could put a key of their own is refused, by servers and clients.
        """
        keys.chmod(mode)

        with pytest.raises(ConfigError, match="others can add keys"):
            load(keys)

    @pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
    @pytest.mark.parametrize(
        ("load", "name"),
        [(load_accepted, "rank.1.public"), (lambda where: load_client_keys(where, "rank"), "server.1.public")],
    )
    def test_with_a_key_that_others_can_write_to(self, keys, load, name, mode):
        """
        A public key that others could replace by their own is refused, by servers and clients.
        """
        (keys / name).chmod(mode)

        with pytest.raises(ConfigError, match="others can replace this key"):
            load(keys)

    def test_that_others_can_read(self, keys):
        """
        A directory that others can only look into is accepted: its public keys are public, its secrets are not.
        """
        keys.chmod(0o755)

        assert set(load_accepted(keys).values()) == {"rank", "viewer", "control"}
