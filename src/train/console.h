// What a run says while it goes on: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/patient_writer.h"

namespace dgc::train {

struct Progress {
  std::string mode;
  std::uint64_t step = 0, steps = 0;
  double epoch = 0.0, epochs = 0.0;
  double examples_per_second = 0.0;
  double seconds_left = 0.0;
  double loss = 0.0;
  std::string metric;  ///< of the last evaluation, as text; empty before the first
  double bytes_per_step = 0.0;
  double message_ratio = 0.0;
  double waiting_share = 0.0;
};

/// To stderr, without waiting for who reads it. Of a worker that was started by the launcher, which
/// passes on what rank 0 says.
class Console {
 public:
  /// Says nothing when quiet, or where another rank does the talking.
  explicit Console(bool quiet);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// A line that stays.
  void say(const std::string& line);
  /// Shown at once on a terminal; else if the last was five seconds ago.
  void progress(const Progress& progress);
  void progress(const std::string& text);

 private:
  void clear();
  PatientWriter out_;
  bool quiet_;
  bool live_;
  std::size_t width_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

/// The line itself.
std::string progress_text(const Progress& progress);

/// Whether somebody looks at stderr: a terminal, here or where the launcher is.
bool terminal();
/// Characters in a line of it.
std::size_t terminal_width();
/// For workers: their launcher's stderr is a terminal of this width.
inline constexpr const char* kTerminalVariable = "DGC_TERMINAL";

}  // namespace dgc::train
