#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sndfile.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "data/alphabet.h"
#include "data/audio.h"
#include "data/spectrogram.h"
#include "data/speech.h"
#include "support/data_audio.h"
#include "support/scratch.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using test::expect_contains;
using test::kFlac;
using test::kRaw;
using test::noise;
using test::Scratch;
using test::write_audio;

TEST(DataAudio, ReadsWavFlacAndRaw) {
  const Scratch folder;
  const std::vector<float> samples = noise(100'000);
  for (const auto& file : {write_audio(folder / "a.wav", samples),
                           write_audio(folder / "a.flac", samples, 16000, 1, kFlac),
                           write_audio(folder / "a.raw", samples, 16000, 1, kRaw)}) {
    const Audio audio = read_audio(file);
    EXPECT_EQ(audio.rate, 16000);
    EXPECT_EQ(audio.samples, samples) << file;
    EXPECT_EQ(audio_info(file).samples, 100'000);
    EXPECT_DOUBLE_EQ(audio_info(file).seconds(), 6.25);
  }
  const Audio stereo =
      read_audio(write_audio(folder / "s.wav", {0.5f, 0.25f, -0.5f, 0.5f}, 8000, 2));
  EXPECT_EQ(stereo.rate, 8000);
  EXPECT_EQ(stereo.samples, (std::vector<float>{0.375f, 0.0f}));
}

TEST(DataAudio, RefusesWhatIsNotWhole) {
  const Scratch folder;
  // What read_audio and audio_info say must be the same kind of error.
  const auto refused = [](const fs::path& file, std::initializer_list<std::string_view> parts) {
    expect_contains(error_text([&] { read_audio(file); }), parts);
    expect_contains(error_text([&] { audio_info(file); }), parts);
  };
  refused(folder / "none.wav", {"io: ", "none.wav", "No such file"});
  refused(folder.write("text.wav", std::string(1000, 'x')), {"io: ", "text.wav", "not recognised"});
  refused(folder.write("empty.wav", ""), {"truncated: ", "empty.wav", "is empty"});
  refused(folder.write("empty.raw", ""), {"truncated: ", "empty.raw"});
  refused(write_audio(folder / "none.flac.wav", {}), {"truncated: ", "no samples"});
  const auto wav = write_audio(folder / "cut.wav", noise(16000));
  fs::resize_file(wav, 20000);
  refused(wav, {"truncated: ", "cut.wav", "after 20000 of 32044 bytes"});
  fs::resize_file(wav, 20);
  refused(wav, {"cut.wav"});
  const auto flac = write_audio(folder / "cut.flac", noise(64000), 16000, 1, kFlac);
  const auto whole = fs::file_size(flac);
  fs::resize_file(flac, whole / 2);
  refused(flac, {"truncated: ", "cut.flac", "of 64000 samples"});
  fs::resize_file(flac, whole / 50);
  refused(flac, {"cut.flac"});
  // Damage in the middle: only reading it all can tell.
  const auto damaged = write_audio(folder / "damaged.flac", noise(64000), 16000, 1, kFlac);
  std::fstream stream(damaged, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(60'000);
  stream << std::string(64, 'U') << std::flush;
  EXPECT_EQ(audio_info(damaged).samples, 64000);
  expect_contains(error_text([&] { read_audio(damaged); }),
                  {"truncated: ", "damaged.flac", "of 64000 samples can be read"});
  const int floats = SF_FORMAT_WAV | SF_FORMAT_FLOAT;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e30f}) {
    const auto file = write_audio(folder / "bad.wav", {0, 0, bad}, 16000, 1, floats);
    expect_contains(error_text([&] { read_audio(file); }), {"io: ", "bad.wav", "sample 2 is "});
  }
}

TEST(DataSpectrogram, IsTheDefinition) {
  struct Case {
    int rate;
    std::size_t samples, length, hop, frames;
  };
  // Odd lengths too: 22,050 Hz has a window of 441 samples, 11,025 Hz one of 220 every 110.
  for (const Case& c : {Case{16000, 3000, 320, 160, 17}, Case{8000, 800, 160, 80, 9},
                        Case{22050, 2000, 441, 220, 8}, Case{11025, 500, 220, 110, 3},
                        Case{16000, 320, 320, 160, 1}, Case{16000, 479, 320, 160, 1},
                        Case{16000, 480, 320, 160, 2}, Case{16000, 100, 320, 160, 1}}) {
    const Audio audio{c.rate, noise(c.samples)};
    const Spectrogram got = log_spectrogram(audio);
    EXPECT_EQ(got.bins, static_cast<std::int64_t>(c.length / 2 + 1));
    EXPECT_EQ(got.bins, spectrogram_bins(c.rate));
    ASSERT_EQ(got.frames, static_cast<std::int64_t>(c.frames)) << c.rate << " " << c.samples;
    EXPECT_EQ(got.frames, spectrogram_frames(c.rate, static_cast<std::int64_t>(c.samples)));
    const std::vector<double> expected = test::slow_spectrogram(audio, c.length, c.hop, c.frames);
    ASSERT_EQ(got.values.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(got.values[i], expected[i], 2e-3) << c.rate << ", value " << i;
    }
    EXPECT_EQ(log_spectrogram(audio).values, got.values);
  }
}

TEST(DataSpectrogram, ShowsATone) {
  Audio audio{16000, std::vector<float>(16000)};
  for (std::size_t i = 0; i < audio.samples.size(); ++i) {
    audio.samples[i] =
        0.3f * std::sin(2 * std::numbers::pi_v<float> * 1000 * static_cast<float>(i) / 16000);
  }
  const Spectrogram tone = log_spectrogram(audio);
  EXPECT_EQ(tone.bins, 161);
  EXPECT_EQ(tone.frames, 99);
  for (std::int64_t t = 0; t < tone.frames; ++t) {
    std::int64_t loudest = 0;
    for (std::int64_t b = 0; b < tone.bins; ++b) {
      if (tone.values[b * 99 + t] > tone.values[loudest * 99 + t]) loudest = b;
    }
    EXPECT_EQ(loudest, 20);  // of 50 Hz each
  }
}

TEST(DataSpectrogram, SilenceAndNothing) {
  for (const float x : log_spectrogram({8000, std::vector<float>(1000)}).values) EXPECT_EQ(x, 0.0f);
  expect_contains(error_text([] { log_spectrogram({16000, {}}); }), {"invalid_argument"});
  expect_contains(error_text([] { log_spectrogram({50, {1.0f}}); }), {"invalid_argument", "50 Hz"});
}

/// A table of `count` utterances with their files, of 0.1 s.
std::string utterances(const Scratch& folder, const std::string& name, int count) {
  std::string table;
  for (int i = 0; i < count; ++i) {
    const std::string file = fmt::format("wav/{}{:02}.wav", name, i);
    write_audio(folder / file, noise(1600));
    table += fmt::format("{}\t0.100\thello {}\n", file, i % 10);
  }
  return table;
}

TEST(DataSpeech, Manifest) {
  const Scratch folder;
  const auto train = folder.write("train.tsv", utterances(folder, "a", 41) + "\n");
  const auto test = folder.write("test.tsv", "wav/a00.wav\tGood-bye.\r\n");
  const SpeechSet set = load_manifest(train, {}, test);
  EXPECT_EQ(set.rate, 16000);
  EXPECT_EQ(set.train.size(), 39u);
  ASSERT_EQ(set.valid.size(), 2u);
  EXPECT_EQ(set.valid[0].file, folder / "wav/a39.wav");
  EXPECT_EQ(set.valid[1].text, "HELLO ZERO");
  ASSERT_EQ(set.test.size(), 1u);
  EXPECT_EQ(set.test[0].text, "GOOD BYE");
  EXPECT_DOUBLE_EQ(set.test[0].seconds, 0.1);
  EXPECT_TRUE(set.skipped.empty());
  const SpeechSet alone = load_manifest(train, {}, {});
  EXPECT_EQ(alone.train.size(), 37u);
  EXPECT_EQ(alone.valid[0].file, folder / "wav/a37.wav");
  EXPECT_EQ(alone.test[0].file, folder / "wav/a39.wav");
}

TEST(DataSpeech, SkipsOrRefusesUnusableUtterances) {
  const Scratch folder;
  const std::string good = utterances(folder, "a", 5);
  folder.write("wav/text.wav", "not audio, though it says so");
  fs::resize_file(write_audio(folder / "wav/cut.wav", noise(1600)), 1000);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"wav/none.wav\tHI", "No such file"},
      {"wav/text.wav\tHI", "not recognised"},
      {"wav/cut.wav\tHI", "ends after 1000 of 3244 bytes"},
      {"wav/a00.wav\t", "the transcript is empty"},
      {"wav/a00.wav\t0.1\t ?", "the transcript is empty"},
      {"wav/a00.wav\tPRESS 42", "how \"42\" is spoken"},
      {"wav/a00.wav\t1.5\tHI", "the file has 0.100 s, the table says 1.500 s"}};
  std::string table = good;
  for (const auto& [line, why] : bad) {
    table += line + "\n";
    const auto one = folder.write("one.tsv", good + line + "\n");
    const std::string error = error_text([&] { load_manifest(one, {}, {}, {.strict = true}); });
    expect_contains(error, {line.substr(0, line.find('\t')), why});
    EXPECT_NE(error.find(line.find("cut") == std::string::npos ? "io: " : "truncated: "),
              std::string::npos)
        << error;
  }
  const SpeechSet set = load_manifest(folder.write("t.tsv", table), {}, {});
  EXPECT_EQ(set.train.size() + set.valid.size() + set.test.size(), 5u);
  ASSERT_EQ(set.skipped.size(), bad.size());
  for (std::size_t i = 0; i < bad.size(); ++i) {
    expect_contains(set.skipped[i],
                    {bad[i].first.substr(0, bad[i].first.find('\t')), bad[i].second});
  }
  // None left, in any part.
  const auto lost = folder.write("lost.tsv", bad[0].first + "\n" + bad[1].first + "\n");
  const auto train = folder.write("good.tsv", good);
  expect_contains(error_text([&] { load_manifest(lost, train, train); }),
                  {"io: ", "no usable utterances to train", "2 cannot", "none.wav: "});
  expect_contains(error_text([&] { load_manifest(train, lost, train); }), {"io: ", "to validate"});
  expect_contains(error_text([&] { load_manifest(train, {}, lost); }), {"io: ", "to test"});
}

TEST(DataSpeech, RefusesBadTables) {
  const Scratch folder;
  const std::string good = utterances(folder, "a", 3);
  const auto load = [&](const std::string& table) {
    const auto file = folder.write("bad.tsv", table);
    return error_text([&] { load_manifest(file, {}, {}); });
  };
  expect_contains(load(good + "wav/a00.wav\n"), {"io: ", "bad.tsv, line 4", "1 columns"});
  expect_contains(load("a\t1\tb\tc\n"), {"io: ", "bad.tsv, line 1", "4 columns"});
  expect_contains(load("\n\tHI\n"), {"io: ", "bad.tsv, line 2", "no path"});
  for (const char* const seconds : {"long", "1s", "", "nan"}) {
    expect_contains(load(fmt::format("wav/a00.wav\t{}\tHI\n", seconds)),
                    {"io: ", "bad.tsv, line 1", "no number of seconds"});
  }
  expect_contains(load("wav/a00.wav\tH\xff\n"), {"io: ", "bad.tsv, line 1", "not UTF-8"});
  expect_contains(load(""), {"io: ", "no usable utterances"});
  expect_contains(error_text([&] { load_manifest(folder / "none.tsv", {}, {}); }),
                  {"io: ", "none.tsv", "cannot open"});
  write_audio(folder / "wav/b.wav", noise(800), 8000);
  expect_contains(load(good + "wav/b.wav\tHI\n"),
                  {"invalid_argument: ", "b.wav", "8000 Hz", "a00.wav", "16000 Hz"});
}

TEST(DataSpeech, LeavesOutLongTrainUtterances) {
  const Scratch folder;
  write_audio(folder / "wav/long.wav", noise(3200));
  const auto file = folder.write("t.tsv", utterances(folder, "a", 4) + "wav/long.wav\tHI\n");
  const SpeechSet set = load_manifest(file, file, file, {.max_seconds = 0.15});
  EXPECT_EQ(set.train.size(), 4u);
  EXPECT_EQ(set.test.size(), 5u);
  EXPECT_EQ(set.too_long, 1);
  EXPECT_TRUE(set.skipped.empty());
  expect_contains(error_text([&] { load_manifest(file, file, file, {.max_seconds = 0.05}); }),
                  {"io: ", "to train", "5 are longer"});
  expect_contains(error_text([&] { load_manifest(file, {}, {}, {.max_seconds = -1}); }),
                  {"invalid_argument", "max_seconds"});
}

TEST(DataSpeech, An4AsCmuHasIt) {
  const Scratch folder;
  std::string ids, texts;
  for (const char* const id : {"an1-x-b", "an2-x-b", "an3-x-b"}) {
    ids += fmt::format("an4_clstk/x/{}\n", id);
    texts += fmt::format("<s> GO {} </s> ({})\n", id[2], id);
    write_audio(folder / fmt::format("an4/wav/an4_clstk/x/{}.raw", id), noise(8000), 16000, 1,
                kRaw);
  }
  write_audio(folder / "an4/wav/an4test_clstk/y/cen1-y-b.wav", noise(16000));
  folder.write("an4/etc/an4_train.fileids", ids);
  folder.write("an4/etc/an4_train.transcription", texts);
  folder.write("an4/etc/an4_test.fileids", "an4test_clstk/y/cen1-y-b\n");
  folder.write("an4/etc/an4_test.transcription", "YES (cen1-y-b)\n");
  for (const fs::path& place : {folder.path(), folder / "an4"}) {
    const SpeechSet set = load_an4(place, {.strict = true});
    ASSERT_EQ(set.train.size(), 2u);
    EXPECT_EQ(set.train[1].text, "GO TWO");
    EXPECT_DOUBLE_EQ(set.train[1].seconds, 0.5);
    EXPECT_EQ(set.valid.at(0).text, "GO THREE");
    EXPECT_EQ(set.test.at(0).text, "YES");
    EXPECT_EQ(set.rate, 16000);
  }
  folder.write("an4/etc/an4_test.transcription", "YES (cen2-y-b)\n");
  expect_contains(error_text([&] { load_an4(folder.path()); }),
                  {"io: ", "an4_test.transcription, line 1", "cen1-y-b"});
  folder.write("an4/etc/an4_train.fileids", ids + "more\n");
  expect_contains(error_text([&] { load_an4(folder.path()); }),
                  {"io: ", "an4_train.transcription", "3 lines", "has 4"});
  expect_contains(error_text([&] { load_an4(folder / "none"); }), {"io: ", "none", "not the AN4"});
}

TEST(DataSpeech, Librispeech) {
  const Scratch folder;
  const auto add = [&](const std::string& part, int reader, int count) {
    std::string table;
    for (int i = 0; i < count; ++i) {
      const std::string id = fmt::format("{}-7-{:04}", reader, i);
      write_audio(folder / fmt::format("{}/{}/7/{}.flac", part, reader, id), noise(1600), 16000, 1,
                  kFlac);
      table += fmt::format("{} IT'S {}\n", id, std::string(static_cast<std::size_t>(reader), 'X'));
    }
    folder.write(fmt::format("{}/{}/7/{}-7.trans.txt", part, reader, reader), table);
  };
  add("train-clean-5", 2, 2);
  add("train-clean-5", 1, 3);
  const SpeechSet alone = load_librispeech(folder.path());
  ASSERT_EQ(alone.train.size(), 3u);
  EXPECT_EQ(alone.train[0].text, "IT'S X");
  EXPECT_EQ(alone.test.at(0).file.filename(), "2-7-0001.flac");
  add("test-other", 3, 2);
  add("test-clean", 4, 2);
  add("dev-clean", 5, 1);
  const SpeechSet set = load_librispeech(folder.path(), {.strict = true});
  EXPECT_EQ(set.train.size(), 5u);
  EXPECT_EQ(set.valid.size(), 1u);
  ASSERT_EQ(set.test.size(), 4u);
  EXPECT_EQ(set.test[0].part, "test-clean");
  EXPECT_EQ(set.test[3].part, "test-other");
  folder.write("train-clean-5/9/7/9-7.trans.txt", "9-7-0000 HI\n9-7-0001\n");
  expect_contains(fmt::format("{}", fmt::join(load_librispeech(folder.path()).skipped, "\n")),
                  {"9-7-0000.flac: ", "9-7-0001.flac: the transcript is empty"});
  expect_contains(error_text([&] { load_librispeech(folder / "dev-clean"); }), {"io: ", "train-"});
  expect_contains(error_text([&] { load_librispeech(folder / "none"); }),
                  {"io: ", "none", "No such file"});
}

TEST(DataSpeech, AsteriskTexts) {
  const Scratch folder;
  std::string texts =
      "; a remark\n\nbeep: [a tone]\ndir/star: press * or # [twice]\nodd: dial 500\n";
  write_audio(folder / "dir/star.wav", noise(800), 8000);
  for (int i = 0; i < 20; ++i) {
    texts += fmt::format("k{:02}: Hello\n", i);
    write_audio(folder / fmt::format("k{:02}.wav", i), noise(800), 8000);
  }
  const AsteriskFiles files{folder / "texts.gz", folder.path()};
  expect_contains(error_text([&] { load_asterisk({}, files); }),
                  {"io: ", "texts.gz", "apt install asterisk-core-sounds-en"});
  gzFile gzip = gzopen(files.texts.c_str(), "wb");
  gzwrite(gzip, texts.data(), static_cast<unsigned>(texts.size()));
  gzclose(gzip);
  const SpeechSet set = load_asterisk({.strict = true}, files);
  EXPECT_EQ(set.train.size(), 18u);
  EXPECT_EQ(set.train[0].text, "PRESS STAR OR POUND");
  EXPECT_EQ(set.valid.size(), 1u);
  EXPECT_EQ(set.test.size(), 2u);
  EXPECT_EQ(set.valid.at(0).file, folder / "k03.wav");
  EXPECT_EQ(set.test[1].file, folder / "k18.wav");
  ASSERT_EQ(set.skipped.size(), 2u);
  expect_contains(set.skipped[0], {"beep.wav: not speech"});
  expect_contains(set.skipped[1], {"odd.wav: how \"500\""});
  folder.write("texts.gz", "no key\n");
  expect_contains(error_text([&] { load_asterisk({}, files); }), {"io: ", "line 1", "key: text"});
}

double minutes(const std::vector<Utterance>& list) {
  double seconds = 0;
  for (const Utterance& utterance : list) {
    seconds += utterance.seconds;
    EXPECT_FALSE(Alphabet::encode(utterance.text).empty());
  }
  return seconds / 60;
}

TEST(DataSpeech, RealAsterisk) {
  const AsteriskFiles files;
  if (!fs::exists(files.texts) || !fs::exists(files.sounds)) {
    GTEST_SKIP() << "asterisk-core-sounds-en or asterisk-core-sounds-en-wav is not installed";
  }
  const SpeechSet set = load_asterisk({.strict = true});
  EXPECT_EQ(set.rate, 8000);
  const std::size_t used = set.train.size() + set.valid.size() + set.test.size();
  EXPECT_EQ(used + set.skipped.size(), 569u);
  EXPECT_LT(set.skipped.size(), 30u);
  EXPECT_EQ(set.test.size(), used / 10);
  EXPECT_GT(minutes(set.train) + minutes(set.valid) + minutes(set.test), 20);
}

TEST(DataSpeech, RealAn4) {
  const auto folder = test::published_data("an4");
  if (folder.empty()) GTEST_SKIP() << "$DGC_DATA has no an4";
  const SpeechSet set = load_an4(folder, {.strict = true});
  EXPECT_EQ(set.train.size(), 948u - 47);
  EXPECT_EQ(set.valid.size(), 47u);
  EXPECT_EQ(set.test.size(), 130u);
  EXPECT_NEAR(minutes(set.train) + minutes(set.valid), 42.4, 0.1);
  EXPECT_NEAR(minutes(set.test), 5.95, 0.01);
  const Spectrogram spectrogram = log_spectrogram(read_audio(set.test[0].file));
  EXPECT_EQ(spectrogram.bins, 161);
}

TEST(DataSpeech, RealLibrispeech) {
  const auto folder = test::published_data("mini_librispeech_sample");
  if (folder.empty()) GTEST_SKIP() << "$DGC_DATA has no mini_librispeech_sample";
  const SpeechSet set = load_librispeech(folder, {.strict = true});
  EXPECT_EQ(set.train.size(), 36u);
  EXPECT_NEAR(minutes(set.train) + minutes(set.valid) + minutes(set.test), 7.7, 0.1);
  EXPECT_EQ(set.train[0].part, "train-clean-5");
  EXPECT_EQ(read_audio(set.test[0].file).rate, 16000);
}

}  // namespace
}  // namespace dgc::data
