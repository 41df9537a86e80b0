"""Configurations from TOML files."""

from __future__ import annotations

import sys

import pytest

from trackside.events import ConfigError, UnreadableError
from trackside.job import JobConfig, LogConfig, TrainingConfig

reads_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML")


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a configuration from text."""

    def read(text):
        path = tmp_path / "job.toml"
        path.write_text(text, encoding="utf-8")
        return JobConfig.from_toml(path)

    return read


@reads_toml
class TestFromToml:
    def test_everything(self, read):
        """Every setting has the same effect in TOML as in Python."""
        assert read(
            """
            application_name = "charlm"
            session_tag = "s"
            world_size = 8
            is_baseline_run = true
            run_id = "r"
            attempt = 2
            strict = true
            disabled_ranks = "1-3"
            annotate = "record_function"

            [custom_metadata]
            k = 1

            [training]
            perf_tag = ["a", "b"]
            global_batch_size = 32
            peak_flops_per_s = 9.9e14
            save_checkpoint_strategy = "async"

            [log]
            log_level = "DEBUG"
            """
        ) == JobConfig(
            application_name="charlm",
            session_tag="s",
            world_size=8,
            is_baseline_run=True,
            run_id="r",
            attempt=2,
            strict=True,
            disabled_ranks="1-3",
            annotate="record_function",
            custom_metadata={"k": 1},
            training=TrainingConfig(
                perf_tag=["a", "b"], global_batch_size=32, peak_flops_per_s=9.9e14, save_checkpoint_strategy="async"
            ),
            log=LogConfig(log_level="DEBUG"),
        )

    def test_one_tag(self, read):
        """A single tag may be a string, and ranks a list."""
        config = read('application_name = "x"\ndisabled_ranks = [1, 2]\n[training]\nperf_tag = "a"')
        assert (config.training.perf_tag, config.disabled_ranks) == ("a", [1, 2])

    @pytest.mark.parametrize(
        ("text", "field", "given"),
        [
            ('application_name = ""', "application_name", ""),
            ('application_name = "x"\nworld_size = "8"', "world_size", "8"),
            ('application_name = "x"\nstrict = "no"', "strict", "no"),
            ('application_name = "x"\nattempt = 1.5', "attempt", 1.5),
            ('application_name = "x"\n[training]\nperf_tag = "a"\nseq_length = -1', "seq_length", -1),
            ("session_tag = 's'", "application_name", None),
            ('application_name = "x"\n[training]', "perf_tag", None),
        ],
    )
    def test_wrong(self, read, text, field, given):
        """Wrong and missing values are named as in Python, with the types of TOML."""
        with pytest.raises(ConfigError) as caught:
            read(text)
        assert (caught.value.field, caught.value.given) == (field, given)

    @pytest.mark.parametrize(
        ("text", "refusal"),
        [
            ('application_name = "x"\nsesion_tag = "s"', "got 'sesion_tag'; did you mean session_tag[?]"),
            ('application_name = "x"\n[training]\nperf_tag = "a"\nbatch = 3', "got 'batch'; known keys of Training"),
        ],
    )
    def test_unknown(self, read, text, refusal):
        """An unknown key is refused, with the one that is spelt nearly like it, or a list of the known ones."""
        with pytest.raises(ConfigError, match=refusal):
            read(text)

    @pytest.mark.parametrize("text", ["training = 3", 'log = "DEBUG"'])
    def test_no_table(self, read, text):
        """A value that should be a table and is none is refused, by its name."""
        with pytest.raises(ConfigError, match=f"{text.split()[0]}: got .*; give a table"):
            read(f'application_name = "x"\n{text}')

    def test_no_toml(self, read):
        """A file that is not TOML is named, with the place of the error."""
        with pytest.raises(UnreadableError, match=r"job.toml: is no TOML: Invalid value"):
            read("a = 1\nb = ")

    def test_no_text(self, tmp_path):
        """So is a file that is not text."""
        path = tmp_path / "job.toml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(UnreadableError, match="is no TOML"):
            JobConfig.from_toml(path)

    def test_no_file(self, tmp_path):
        """A file that does not exist is named."""
        with pytest.raises(
            UnreadableError, match=r"none.toml: No such file or directory; give the path of a TOML file"
        ):
            JobConfig.from_toml(tmp_path / "none.toml")


class TestPython310:
    @pytest.mark.skipif(sys.version_info >= (3, 11), reason="this Python reads TOML")
    def test_says_so(self, read):
        """On a Python without a TOML reader, one line names the remedy."""
        with pytest.raises(UnreadableError, match=r"use Python 3.11 or later"):
            read("")
