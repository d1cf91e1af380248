// Tables and progress on the terminal.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/units.h"

namespace dgc::process {

/// Rows of text in aligned columns; the first row is the heading. Columns whose cells look like
/// numbers are set flush right.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// To stderr, as it is. Where nobody reads it any more, it is lost and nothing else happens.
void say(const std::string& text) noexcept;

/// One line on stderr that says how far a job is: rewritten in place on a terminal, a plain line
/// every few seconds otherwise, nothing when quiet or in the first two seconds.
class ProgressBar {
 public:
  ProgressBar(std::string what, std::size_t total, bool quiet);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance();

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  std::size_t total_;
  std::size_t done_ = 0;
  bool quiet_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace dgc::process
