"""What a record needs and a model lacks, said in a sentence that helps."""

from acclimate.ops import requirements
from support import task


def test_who_replaces_batch_statistics_is_told_of_others_where_there_are_other_layers():
    assert requirements.batch_statistics(task("cnn-batch"), "BN") is None
    other = requirements.batch_statistics(task("cnn-group"), "BN")
    assert other is not None and other.endswith(
        ", or use tent or sar, which tune the layers that it has (layer or group norm)"
    )
    plain = requirements.batch_statistics(task("cnn-plain"), "BN")
    assert plain is not None and plain.startswith("BN needs batch norm") and "tent" not in plain
