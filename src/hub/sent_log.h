// What a member has sent since it saved its residual, on its disk: written before it is sent, so
// that a process that was killed knows what to take out of the residual that it had saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "hub/packet.h"
#include "hub/rounds.h"

namespace dgc::hub {

class SentLog {
 public:
  struct Entry {
    std::uint64_t sequence = 0;
    std::uint64_t examples = 0;
    Outcome outcome = Outcome::none;  ///< none: not known when the process ended
    Bytes message;
    bool named = false;  ///< as lost, to whoever runs the member
  };

  /// Appends to the file; makes it if need be. Throws Error(io).
  explicit SentLog(std::filesystem::path file);
  ~SentLog();
  SentLog(const SentLog&) = delete;
  SentLog& operator=(const SentLog&) = delete;

  /// On the disk when it returns.
  void sent(std::uint64_t sequence, std::uint64_t examples, std::span<const std::byte> message);
  /// May be lost with the machine until flush(): then the hub tells it, as far as it remembers.
  void settled(std::uint64_t sequence, Outcome outcome);

  /// Messages up to this one were named as lost.
  void named(std::uint64_t sequence);

  /// Makes the file anew, with these alone. On the disk when it returns. Throws Error(io).
  static void write(const std::filesystem::path& file, const std::vector<Entry>& entries);
  /// Everything is on the disk when it returns.
  void flush();

  /// In their order. What was being written when a process was killed is left out.
  static std::vector<Entry> read(const std::filesystem::path& file);

 private:
  void append(const Bytes& packet, bool flush);

  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace dgc::hub
