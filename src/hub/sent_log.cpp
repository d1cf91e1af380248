// Each entry is a length of 64 bits and a packet of so many bytes, which has a checksum.
#include "hub/sent_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::hub {

SentLog::SentLog(std::filesystem::path file) : path_(std::move(file)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file_ < 0) {
    throw Error(ErrorCode::io, "join", path_.string(),
                "cannot be written: " + std::generic_category().message(errno));
  }
}

SentLog::~SentLog() { ::close(file_); }

void SentLog::append(const Bytes& packet, bool flush) {
  const std::uint64_t length = packet.size();
  Bytes entry(sizeof length + packet.size());
  std::memcpy(entry.data(), &length, sizeof length);
  std::copy(packet.begin(), packet.end(), entry.begin() + sizeof length);
  std::size_t at = 0;
  while (at < entry.size()) {
    const ::ssize_t wrote = ::write(file_, entry.data() + at, entry.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      throw Error(ErrorCode::io, "join", path_.string(),
                  "cannot be written: " + std::generic_category().message(errno),
                  "is the disk full?");
    }
    at += static_cast<std::size_t>(wrote);
  }
  if (flush && ::fdatasync(file_) != 0) {
    throw Error(ErrorCode::io, "join", path_.string(),
                "cannot be flushed: " + std::generic_category().message(errno));
  }
}

void SentLog::sent(std::uint64_t sequence, std::uint64_t examples,
                   std::span<const std::byte> message) {
  const std::span<const std::byte> blobs[] = {message};
  append(write_packet({{"sequence", sequence}, {"examples", examples}}, blobs), /*flush=*/true);
}

void SentLog::settled(std::uint64_t sequence, Outcome outcome) {
  append(write_packet({{"sequence", sequence}, {"outcome", static_cast<int>(outcome)}}),
         /*flush=*/false);
}

std::vector<SentLog::Entry> SentLog::read(const std::filesystem::path& file) {
  std::vector<Entry> entries;
  if (!std::filesystem::exists(file) || std::filesystem::file_size(file) == 0) return entries;
  const MappedFile mapped(file);
  std::span<const std::byte> rest = mapped.contents();
  while (rest.size() > sizeof(std::uint64_t)) {
    std::uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    rest = rest.subspan(sizeof length);
    if (length > rest.size()) break;
    try {
      const Packet packet = read_packet(rest.first(static_cast<std::size_t>(length)));
      const std::uint64_t sequence = whole_number(packet.head, "sequence");
      if (packet.head.contains("outcome")) {
        for (Entry& entry : entries) {
          if (entry.sequence == sequence) {
            entry.outcome = static_cast<Outcome>(whole_number(packet.head, "outcome"));
          }
        }
      } else {
        const auto message = packet.blob(0);
        entries.push_back({.sequence = sequence,
                           .examples = whole_number(packet.head, "examples"),
                           .message = Bytes(message.begin(), message.end())});
      }
    } catch (const Error&) {
      break;
    }
    rest = rest.subspan(static_cast<std::size_t>(length));
  }
  return entries;
}

}  // namespace dgc::hub
