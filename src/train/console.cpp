#include "train/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/units.h"

namespace dgc::train {
namespace {

std::string duration_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

std::size_t terminal_width() {
  if (const char* width = std::getenv(kTerminalVariable)) {
    return std::max<std::size_t>(20, std::strtoul(width, nullptr, 10));
  }
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

bool terminal() {
  return ::isatty(STDERR_FILENO) != 0 || std::getenv(kTerminalVariable) != nullptr;
}

std::string progress_text(const Progress& p) {
  std::string text =
      fmt::format("[{}] epoch {:.2f}/{:.4g}  step {}/{}  {:.0f} examples/s  {} left  loss {:.4f}",
                  p.mode, p.epoch, p.epochs, p.step, p.steps, p.examples_per_second,
                  duration_text(p.seconds_left), p.loss);
  if (!p.metric.empty()) text += "  " + p.metric;
  text += fmt::format("  {}/step ({:.0f}x)  waiting {:.0f} %", bytes_text(p.bytes_per_step),
                      p.message_ratio, 100.0 * p.waiting_share);
  return text;
}

Console::Console(bool quiet) : quiet_(quiet), live_(terminal()), width_(terminal_width()) {}
Console::~Console() { clear(); }

// A live line ends with '\r' rather than beginning with it: the launcher passes lines on when they
// are whole.
void Console::clear() {
  if (shown_) out_.put("\033[K\r");
  shown_ = false;
}

void Console::say(const std::string& line) {
  if (quiet_) return;
  clear();
  out_.put(line + "\n");
}

void Console::progress(const Progress& p) {
  if (!quiet_) progress(progress_text(p));
}

void Console::progress(const std::string& text) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || (last_.time_since_epoch().count() != 0 && now - last_ < (live_ ? 100ms : 5'000ms)))
    return;
  last_ = now;
  if (!out_.idle()) return;  // paused: what it would read later is of no use then
  if (live_) {
    // A line that wraps could not be overwritten.
    out_.put(text.substr(0, width_ - 1) + "\033[K\r");
    shown_ = true;
  } else {
    out_.put(text + "\n");
  }
}

}  // namespace dgc::train
