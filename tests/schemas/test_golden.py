"""What was written once can be read for ever, by this code and by any MessagePack library."""

import pytest

from evenload.schemas import WIRE_VERSION, encode
from tests.schemas import golden
from tests.schemas.plain import pack, unpack
from tests.schemas.samples import SAMPLES, Sample

in_every_set = pytest.mark.parametrize("set_name", golden.SETS)
every_sample = pytest.mark.parametrize(("name", "sample"), SAMPLES.items(), ids=SAMPLES)


@in_every_set
@every_sample
def test_golden_bytes_decode_to_the_same_message(set_name: str, name: str, sample: Sample) -> None:
    assert sample.decode(golden.read(set_name, name)) == sample.message


@every_sample
def test_encode_still_gives_the_golden_bytes(name: str, sample: Sample) -> None:
    assert encode(sample.message).hex() == golden.read(golden.SETS[-1], name).hex()


@every_sample
def test_an_independent_library_sees_the_expected_plain_dict(name: str, sample: Sample) -> None:
    plain = unpack(golden.read(golden.SETS[-1], name))
    assert plain == sample.plain
    assert list(plain) == list(sample.plain), "the order of fields on the wire changed"


@every_sample
def test_what_an_independent_library_writes_decodes(name: str, sample: Sample) -> None:
    assert sample.decode(pack(sample.plain)) == sample.message


def test_every_golden_file_has_its_sample() -> None:
    for set_name in golden.SETS:
        assert {path.stem for path in (golden.FOLDER / set_name).iterdir()} == set(SAMPLES)
    assert {path.name for path in golden.FOLDER.iterdir()} == set(golden.SETS)


def test_every_sample_is_of_the_version_that_this_code_writes() -> None:
    assert {sample.message.v for sample in SAMPLES.values()} == {WIRE_VERSION}
