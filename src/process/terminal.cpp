#include "process/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace dgc::process {
namespace {

bool numeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           cell[0] == '-' || cell[0] == '+' || cell[0] == '.');
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return {};
  std::vector<std::size_t> widths(rows[0].size(), 0);
  std::vector<bool> right(rows[0].size(), rows.size() > 1);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      if (r > 0 && !numeric(rows[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      if (c > 0) line += "  ";
      line += right[c] ? fmt::format("{:>{}}", row[c], widths[c])
                       : fmt::format("{:<{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void say(const std::string& text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

ProgressBar::ProgressBar(std::string what, std::size_t total, bool quiet)
    : what_(std::move(what)), total_(total), quiet_(quiet), terminal_(::isatty(2) != 0) {}

void ProgressBar::advance() {
  ++done_;
  const auto now = Clock::now();
  const std::chrono::duration<double> elapsed = now - start_;
  const std::chrono::duration<double> since = now - last_;
  if (quiet_ || elapsed.count() < 2.0 || (shown_ && since.count() < (terminal_ ? 0.1 : 5.0)))
    return;
  const double rate = static_cast<double>(done_) / elapsed.count();
  const std::string line = fmt::format("{}: {}/{}, {:.1f} a second, {:.0f} s left", what_, done_,
                                       total_, rate, static_cast<double>(total_ - done_) / rate);
  say(fmt::format("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ ? "" : "\n"));
  last_ = now;
  shown_ = true;
}

ProgressBar::~ProgressBar() {
  if (shown_ && terminal_) say("\r\033[K");
}

}  // namespace dgc::process
