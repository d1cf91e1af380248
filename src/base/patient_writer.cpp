#include "base/patient_writer.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace dgc {

PatientWriter::~PatientWriter() { write(/*wait=*/true); }

void PatientWriter::put(std::string_view text) {
  constexpr std::size_t kMost = 1 << 20;
  waiting_ += text;
  write(/*wait=*/false);
  if (waiting_.size() > kMost) {
    const std::size_t line = waiting_.find('\n', waiting_.size() - kMost);
    waiting_.erase(0, line == std::string::npos ? waiting_.size() - kMost : line + 1);
  }
}

bool PatientWriter::idle() {
  write(/*wait=*/false);
  return waiting_.empty();
}

void PatientWriter::write(bool wait) {
  // A pipe that poll calls writable takes this much at once.
  constexpr std::size_t kAtOnce = 512;
  std::size_t done = 0;
  while (done < waiting_.size()) {
    pollfd ready{file_, POLLOUT, 0};
    const int count = ::poll(&ready, 1, wait ? -1 : 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    const ssize_t written =
        ::write(file_, waiting_.data() + done, std::min(kAtOnce, waiting_.size() - done));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0) done = waiting_.size();  // nobody is there any more
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  waiting_.erase(0, done);
}

}  // namespace dgc
