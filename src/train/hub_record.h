// What a hub writes about its run: the files that `dgc train` writes, so that `dgc report` shows
// both alike. Bytes are those of an average member.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "hub/hub.h"
#include "train/console.h"
#include "train/hub_run.h"
#include "train/metrics_log.h"
#include "train/record.h"

namespace dgc::train {

class HubRecord {
 public:
  struct Options {
    std::filesystem::path folder;  ///< of the mode: RUN/MODE
    Settings settings;
    std::string mode;
    std::uint64_t rounds = 0;  ///< of the whole run; 0: not known
  };
  /// Counts what the journal has of an earlier part of the run. Throws Error(io).
  HubRecord(Options options, hub::Journal& journal, Console& console);

  /// Once the model is known.
  void set_model(const std::vector<TensorSpec>& model, std::int64_t positions);
  void committed(const hub::CommitLine& line);
  void evaluated(const hub::EvaluationNote& note);

  /// result.json of the mode, and summary.json beside its folder.
  Summary finish(bool finished, const std::string& hash);

 private:
  void count(const hub::CommitLine& line);
  bool is_logged(std::uint64_t round) const;
  double epoch() const;

  Options options_;
  Console& console_;
  std::optional<MetricsLog> log_;
  std::vector<TensorSpec> model_;
  double parameters_ = 0.0;
  std::int64_t positions_ = 0;
  double seconds_ = 0.0;  // of all rounds
  hub::CommitLine last_;
  double members_ = 0.0;          // of all rounds, added up
  double up_ = 0.0, down_ = 0.0;  // of an average member
  struct SinceLine {
    double loss = 0.0, rounds = 0.0, seconds = 0.0, examples = 0.0;
  } since_;
  std::optional<hub::EvaluationNote> evaluation_;
};

}  // namespace dgc::train
