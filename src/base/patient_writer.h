// Lines for somebody who may not be reading right now.
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>

namespace dgc {

/// Writes to a terminal or pipe without waiting for its reader: what a paused terminal (Ctrl-S) or
/// a pager does not take stays here, the last megabyte of it, until a later call or the end. A
/// reader who is gone is no error. Not for several threads.
class PatientWriter {
 public:
  explicit PatientWriter(int file = STDERR_FILENO) : file_(file) {}
  /// Waits for the reader.
  ~PatientWriter();
  PatientWriter(const PatientWriter&) = delete;
  PatientWriter& operator=(const PatientWriter&) = delete;

  void put(std::string_view text);
  /// Tries to write what waits; true when nothing does.
  bool idle();

 private:
  void write(bool wait);

  int file_;
  std::string waiting_;
};

}  // namespace dgc
