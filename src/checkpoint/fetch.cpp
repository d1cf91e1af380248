#include "checkpoint/fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file.h"
#include "checkpoint/disk.h"
#include "checkpoint/together.h"
#include "dgc/collectives.h"

namespace dgc::checkpoint {
namespace {

constexpr const char* kOperation = "open checkpoint";

/// A part of a file that fits into one message.
struct Piece {
  std::size_t file;
  std::uint64_t offset;
  std::uint64_t size;
};

/// Everything that goes from one rank to another, in order.
using Streams = std::map<std::pair<int, int>, std::vector<Piece>>;

Streams cut(const Manifest& manifest, const std::vector<Transfer>& transfers, int ranks) {
  // What a rank sends in one round has to pass well within the group's timeout on a slow network:
  // 32 MiB take 3 s at 100 Mbit/s.
  const std::uint64_t longest =
      std::max((std::uint64_t{32} << 20) / static_cast<std::uint64_t>(ranks), std::uint64_t{65536});
  Streams streams;
  for (const Transfer& transfer : transfers) {
    const std::uint64_t size = manifest.files[transfer.file].size;
    for (std::uint64_t offset = 0; offset < size; offset += longest) {
      streams[{transfer.from, transfer.to}].push_back(
          {transfer.file, offset, std::min(longest, size - offset)});
    }
  }
  return streams;
}

}  // namespace

MemoryFile::MemoryFile(std::size_t size) : size_(size) {
  const auto fail = [&] {
    const int cause = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(ErrorCode::io, kOperation, fmt::format("{} bytes", size),
                "cannot hold a file in memory: " + std::generic_category().message(cause));
  };
  descriptor_ = ::memfd_create("dgc-checkpoint", MFD_CLOEXEC);
  if (descriptor_ < 0) fail();
  if (size == 0) return;
  // Reserved now: without memory this fails, where writing to the mapping would kill the process.
  errno = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(size));
  if (errno != 0) fail();
  void* const mapping = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapping == MAP_FAILED) fail();
  data_ = static_cast<std::byte*>(mapping);
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
  ::close(descriptor_);
}

std::filesystem::path MemoryFile::path() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

Fetched fetch(Group& group, const Manifest& manifest, const std::vector<Transfer>& transfers,
              const std::filesystem::path& directory, const std::string& hint) {
  Fetched received;
  if (transfers.empty()) return received;
  // Everything that can fail is done before the first byte is sent, or after the last.
  std::map<std::size_t, std::unique_ptr<MappedFile>> sent;
  agree(group, kOperation, [&] {
    for (const Transfer& transfer : transfers) {
      const FileEntry& entry = manifest.files[transfer.file];
      if (transfer.to == group.rank()) {
        received[transfer.file] = std::make_unique<MemoryFile>(entry.size);
      }
      if (transfer.from != group.rank() || sent.contains(transfer.file)) continue;
      const std::filesystem::path path = directory / entry.name;
      auto file = std::make_unique<MappedFile>(path);
      check_bytes(file->contents(), entry, path.string(), hint);
      sent[transfer.file] = std::move(file);
    }
    return nlohmann::json();
  });

  const Streams streams = cut(manifest, transfers, group.size());
  std::size_t rounds = 0;
  for (const auto& [pair, pieces] : streams) rounds = std::max(rounds, pieces.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (const auto& [pair, pieces] : streams) {
      if (round >= pieces.size()) continue;
      const Piece& piece = pieces[round];
      if (pair.first == group.rank()) {
        sends.push_back(
            {pair.second, sent.at(piece.file)->contents().subspan(piece.offset, piece.size)});
      } else if (pair.second == group.rank()) {
        receives.push_back(
            {pair.first, received.at(piece.file)->bytes().subspan(piece.offset, piece.size)});
      }
    }
    group.exchange(sends, receives);
    // So that a rank which has everything does not wait for all the others at the end.
    barrier(group);
  }
  agree(group, kOperation, [&] {
    for (const auto& [file, memory] : received) {
      check_bytes(memory->bytes(), manifest.files[file],
                  fmt::format("{}, as received", manifest.files[file].name), hint);
    }
    return nlohmann::json();
  });
  return received;
}

}  // namespace dgc::checkpoint
