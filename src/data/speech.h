// Sets of utterances: which audio files there are, and what is said in each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dgc::data {

struct Utterance {
  std::filesystem::path file;
  double seconds = 0;
  std::string text;  ///< as spoken, in the characters of the Alphabet; never empty
  std::string part;  ///< LibriSpeech: "test-clean", "dev-other" …; elsewhere empty
};

/// Each of the three has at least one utterance. Where a set has no validation or no test part of
/// its own, the last twentieth of the train utterances (at least one) is set aside for it: the
/// last for test, the one before for valid.
struct SpeechSet {
  int rate = 0;  ///< samples a second, of all files
  std::vector<Utterance> train, valid, test;
  std::vector<std::string> skipped;  ///< utterances that cannot be used: "file: why"
  std::int64_t too_long = 0;         ///< train utterances over max_seconds
};

struct SpeechOptions {
  /// An utterance that cannot be used is an Error; otherwise it is left out and listed in
  /// SpeechSet::skipped: its audio is missing, unreadable or truncated, its transcript is empty or
  /// has words of which it is not known how they are spoken (spoken_text).
  bool strict = false;
  double max_seconds = 0;  ///< leave out longer train utterances; 0: none
};

// All of these read the headers of the audio files, not the samples; files are in a fixed order.
// Errors: io for a folder or table that cannot be read, a malformed line (file and line named), or
// a set with too few usable utterances to train and test; invalid_argument for files of two sample
// rates (both named).

/// AN4: train.tsv and test.tsv (see load_manifest) with their files, or the corpus as CMU
/// publishes it: etc/an4_{train,test}.{fileids,transcription} and wav/….{raw,sph,wav}.
SpeechSet load_an4(const std::filesystem::path& folder, const SpeechOptions& options = {});

/// LibriSpeech: FLAC files with *.trans.txt anywhere below train-*, dev-* and test-* of the folder,
/// or of LibriSpeech/ in it.
SpeechSet load_librispeech(const std::filesystem::path& folder, const SpeechOptions& options = {});

/// Tables of UTF-8 lines, path<TAB>transcript or path<TAB>seconds<TAB>transcript; paths are
/// relative to the table's folder. An utterance of which the table states another length than its
/// file has cannot be used. `valid_tsv` and `test_tsv` may be empty.
SpeechSet load_manifest(const std::filesystem::path& train_tsv,
                        const std::filesystem::path& valid_tsv,
                        const std::filesystem::path& test_tsv, const SpeechOptions& options = {});

/// Where Debian's packages asterisk-core-sounds-en and asterisk-core-sounds-en-wav put things.
struct AsteriskFiles {
  std::filesystem::path texts =
      "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz";  ///< gzipped or not
  std::filesystem::path sounds = "/usr/share/asterisk/sounds/en_US_f_Allison";
};

/// The prompts of the Asterisk telephone exchange, one speaker, 8 kHz. Of every 20 the 5th is for
/// validation, the 10th and 20th for test. Tones, the few prompts whose text is not what is spoken,
/// and texts without a file are listed in `skipped`, also when `strict`.
SpeechSet load_asterisk(const SpeechOptions& options = {}, const AsteriskFiles& files = {});

}  // namespace dgc::data
