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
  // What is in a file is of no use after a power cut unless its name is on the disk, too.
  if (!std::filesystem::exists(path_)) AtomicFile(path_).commit();
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file_ < 0) {
    throw Error(ErrorCode::io, "join", path_.string(),
                "cannot be written: " + std::generic_category().message(errno));
  }
}

SentLog::~SentLog() { ::close(file_); }

namespace {

Bytes entry_of(const Bytes& packet) {
  const std::uint64_t length = packet.size();
  Bytes entry(sizeof length + packet.size());
  std::memcpy(entry.data(), &length, sizeof length);
  std::copy(packet.begin(), packet.end(), entry.begin() + sizeof length);
  return entry;
}

Bytes sent_packet(std::uint64_t sequence, std::uint64_t examples,
                  std::span<const std::byte> message) {
  const std::span<const std::byte> blobs[] = {message};
  return write_packet({{"sequence", sequence}, {"examples", examples}}, blobs);
}

Bytes settled_packet(std::uint64_t sequence, Outcome outcome) {
  return write_packet({{"sequence", sequence}, {"outcome", static_cast<int>(outcome)}});
}

Bytes named_packet(std::uint64_t sequence) { return write_packet({{"named", sequence}}); }

}  // namespace

void SentLog::append(const Bytes& packet, bool flush) {
  const Bytes entry = entry_of(packet);
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
  if (flush) this->flush();
}

void SentLog::flush() {
  if (::fdatasync(file_) != 0) {
    throw Error(ErrorCode::io, "join", path_.string(),
                "cannot be flushed: " + std::generic_category().message(errno));
  }
}

void SentLog::sent(std::uint64_t sequence, std::uint64_t examples,
                   std::span<const std::byte> message) {
  append(sent_packet(sequence, examples, message), /*flush=*/true);
}

void SentLog::settled(std::uint64_t sequence, Outcome outcome) {
  append(settled_packet(sequence, outcome), /*flush=*/false);
}

void SentLog::named(std::uint64_t sequence) { append(named_packet(sequence), /*flush=*/false); }

void SentLog::write(const std::filesystem::path& file, const std::vector<Entry>& entries) {
  AtomicFile whole(file);
  for (const Entry& entry : entries) {
    whole.write(entry_of(sent_packet(entry.sequence, entry.examples, entry.message)));
    if (entry.outcome != Outcome::none) {
      whole.write(entry_of(settled_packet(entry.sequence, entry.outcome)));
    }
    if (entry.named) whole.write(entry_of(named_packet(entry.sequence)));
  }
  whole.commit();
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
      const bool names = packet.head.contains("named");
      const std::uint64_t sequence = whole_number(packet.head, names ? "named" : "sequence");
      if (names) {
        for (Entry& entry : entries) entry.named |= entry.sequence <= sequence;
      } else if (packet.head.contains("outcome")) {
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
