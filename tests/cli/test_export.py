from __future__ import annotations

from .conftest import the_sentence


def test_export_writes_into_the_run_folder(command, run):
    outcome = command("export", run, "--format torch --json")
    assert outcome.status == 0
    assert outcome.document["path"] == str(run / "model.pt2")
    assert outcome.document["difference"] <= 1e-5
    assert (run / "model.pt2").stat().st_size == outcome.document["bytes"]


def test_the_ending_of_the_output_is_the_format(command, run, tmp_path):
    outcome = command("export", run, "--output", tmp_path / "small.onnx", "--int8 --half")
    assert outcome.status == 0
    assert (tmp_path / "small.onnx").exists()
    assert "int8 and float16" in outcome.out


def test_a_folder_goes_to_the_hub(command, run, monkeypatch):
    calls = []
    monkeypatch.setattr("torchcaps.exporting.push", lambda *call, **options: calls.append(call))
    assert command("export", run, "--push me/bars").status == 2
    outcome = command("export", run, "--format hub --push me/bars")
    assert outcome.status == 0
    assert calls == [(run / "hub", "me/bars")]
    assert (run / "hub" / "README.md").exists()


def test_wrong_words_have_status_2_and_failures_status_1(command, run, tmp_path):
    outcome = command("export", run, "--format onyx")
    assert outcome.status == 2
    assert "onyx" in the_sentence(outcome)
    assert command("export", run, "--format torch --opset 20").status == 2
    outcome = command("export", tmp_path / "absent", "--output model.pt2")
    assert outcome.status == 1
    assert str(tmp_path / "absent") in the_sentence(outcome)
