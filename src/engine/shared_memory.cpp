#include "engine/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <sstream>
#include <system_error>

#include "dgc/error.h"

namespace dgc::detail {
namespace {

/// Of all rings together. Those of a small group are large enough that a message of a dense step
/// passes in one piece; those of a large group let large messages pass in several.
constexpr std::size_t kRoomOfAll = std::size_t{64} << 20;
constexpr std::size_t kLargestRing = std::size_t{1} << 20;
constexpr std::size_t kSmallestRing = std::size_t{4} << 10;

/// Differs between machines, and between two starts of one.
std::string this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  file >> text;
  return text.empty() ? "unknown" : text;
}

[[noreturn]] void refuse(ErrorCode code, const std::string& problem, const std::string& hint) {
  throw Error(code, "shared", "memory of rank 0", problem, hint);
}

std::string reason() { return std::generic_category().message(errno); }

std::size_t pairs_of(int size) {
  return static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
}

/// Head, seats and boxes: what is there beside the rings.
std::size_t frame_bytes(int size) {
  return sizeof(Seat) * (static_cast<std::size_t>(size) + 1) + sizeof(Box) * pairs_of(size);
}

/// Limits of file sizes hold for this memory too; whoever exceeds them gets a signal.
std::size_t ring_bytes(int size) {
  rlimit limit{};
  const bool limited =
      ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < frame_bytes(size) + kRoomOfAll;
  const std::size_t room =
      !limited ? kRoomOfAll : limit.rlim_cur - std::min(limit.rlim_cur, frame_bytes(size));
  const std::size_t ring = std::min(room / pairs_of(size), kLargestRing) / 64 * 64;
  if (ring >= kSmallestRing) return ring;
  if (!limited) return kSmallestRing;
  refuse(ErrorCode::io, fmt::format("files may have {} bytes only, it needs more", limit.rlim_cur),
         "raise the limit (ulimit -f), or use the engine gloo");
}

constexpr const char* kUseGloo = "ranks that do not share a machine need the engine gloo";

}  // namespace

/// The beginning of the memory.
struct SharedMemory::Head {
  static constexpr std::uint64_t kMagic = 0x3130'6d68'7363'6764;  // "dgcshm01"
  std::uint64_t magic;
  std::uint64_t size;
  std::uint64_t ring;   // bytes of each
  std::uint64_t token;  // random: memory of an earlier group is not taken for this one
  Word failed;          // 0, or the first rank that gave up, plus 1
};

SharedMemory::SharedMemory(int size) : size_(size), ring_(ring_bytes(size)) {
  file_ = ::memfd_create("dgc", MFD_CLOEXEC);
  if (file_ < 0) refuse(ErrorCode::io, "cannot be made: " + reason(), "use the engine gloo");
  try {
    map();
    lock(0);
  } catch (...) {
    close();
    throw;
  }
  std::random_device random;
  // Everything else is right as zeros, which is what new memory has.
  new (memory_) Head{.magic = Head::kMagic,
                     .size = static_cast<std::uint64_t>(size),
                     .ring = ring_,
                     .token = (std::uint64_t{random()} << 32) | random(),
                     .failed = 0};
}

SharedMemory::SharedMemory(const std::string& address, int rank, int size) : size_(size) {
  std::istringstream words(address);
  std::string boot;
  std::uint64_t process = 0, descriptor = 0, token = 0;
  words >> boot >> process >> descriptor >> token;
  if (!words) {
    refuse(ErrorCode::bad_length, "its address cannot be read",
           "start all ranks with the same version of dgc");
  }
  if (boot != this_boot()) refuse(ErrorCode::invalid_argument, "is on another machine", kUseGloo);
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  const auto lost = [](const std::string& why) {
    throw Error(ErrorCode::peer_lost, "shared", "rank 0", "its memory cannot be opened: " + why,
                "it has ended, or is in another container, where the engine gloo is needed");
  };
  file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0) lost(reason());
  try {
    struct stat status {};
    // The descriptor may be something else by now: look before anything is changed.
    std::uint64_t head[4] = {};
    if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode) ||
        ::pread(file_, head, sizeof head, 0) != static_cast<ssize_t>(sizeof head) ||
        head[0] != Head::kMagic || head[3] != token) {
      lost("it is gone");
    }
    if (head[1] != static_cast<std::uint64_t>(size)) {
      refuse(ErrorCode::invalid_argument, fmt::format("is for {} ranks, not for {}", head[1], size),
             "start all ranks with the same WORLD_SIZE");
    }
    ring_ = head[2];
    map();
    lock(rank);
  } catch (...) {
    close();
    throw;
  }
}

SharedMemory::~SharedMemory() { close(); }

void SharedMemory::map() {
  bytes_ = frame_bytes(size_) + pairs_of(size_) * ring_;
  static_assert(sizeof(Head) <= sizeof(Seat));
  if (::ftruncate(file_, static_cast<off_t>(bytes_)) == 0) {
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (at != MAP_FAILED) {
      memory_ = static_cast<std::byte*>(at);
      return;
    }
  }
  refuse(ErrorCode::io, fmt::format("{} bytes of it cannot be had: {}", bytes_, reason()),
         "use the engine gloo, or fewer workers");
}

void SharedMemory::lock(int rank) const {
  struct flock own {};
  own.l_type = F_WRLCK;
  own.l_whence = SEEK_SET;
  own.l_start = rank;
  own.l_len = 1;
  if (::fcntl(file_, F_OFD_SETLK, &own) == 0) return;
  throw Error(ErrorCode::invalid_argument, "shared", fmt::format("rank {}", rank),
              "is taken: " + reason(), "every process needs a rank of its own");
}

bool SharedMemory::is_alive(int rank) const {
  struct flock theirs {};
  theirs.l_type = F_WRLCK;
  theirs.l_whence = SEEK_SET;
  theirs.l_start = rank;
  theirs.l_len = 1;
  return ::fcntl(file_, F_OFD_GETLK, &theirs) != 0 || theirs.l_type != F_UNLCK;
}

void SharedMemory::close() noexcept {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (file_ >= 0) ::close(file_);
  memory_ = nullptr;
  file_ = -1;
}

std::string SharedMemory::address() const {
  return fmt::format("{} {} {} {}", this_boot(), ::getpid(), file_,
                     reinterpret_cast<const Head*>(memory_)->token);
}

std::size_t SharedMemory::pair(int from, int to) const {
  return static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) +
         static_cast<std::size_t>(to);
}

Seat& SharedMemory::seat(int rank) const {
  return *reinterpret_cast<Seat*>(memory_ + sizeof(Seat) * (static_cast<std::size_t>(rank) + 1));
}

Box& SharedMemory::box(int from, int to) const {
  std::byte* const boxes = memory_ + sizeof(Seat) * (static_cast<std::size_t>(size_) + 1);
  return *reinterpret_cast<Box*>(boxes + sizeof(Box) * pair(from, to));
}

std::byte* SharedMemory::ring(int from, int to) const {
  return memory_ + frame_bytes(size_) + ring_ * pair(from, to);
}

std::size_t SharedMemory::put(int from, int to, std::span<const std::byte> bytes) const {
  Box& box = this->box(from, to);
  const std::uint64_t at = box.written.load();
  const std::size_t count = std::min<std::size_t>(bytes.size(), ring_ - (at - box.taken.load()));
  if (count == 0) return 0;
  const std::size_t first = std::min<std::size_t>(count, ring_ - at % ring_);
  std::memcpy(ring(from, to) + at % ring_, bytes.data(), first);
  std::memcpy(ring(from, to), bytes.data() + first, count - first);
  box.written.store(at + count);
  return count;
}

std::size_t SharedMemory::take(int from, int to, std::span<std::byte> bytes) const {
  Box& box = this->box(from, to);
  const std::uint64_t at = box.taken.load();
  const std::size_t count = std::min<std::size_t>(bytes.size(), box.written.load() - at);
  if (count == 0) return 0;
  const std::size_t first = std::min<std::size_t>(count, ring_ - at % ring_);
  std::memcpy(bytes.data(), ring(from, to) + at % ring_, first);
  std::memcpy(bytes.data() + first, ring(from, to), count - first);
  box.taken.store(at + count);
  return count;
}

bool SharedMemory::is_full(int from, int to) const {
  const Box& box = this->box(from, to);
  return box.written.load() - box.taken.load() == ring_;
}

int SharedMemory::failed() const {
  return static_cast<int>(reinterpret_cast<const Head*>(memory_)->failed.load()) - 1;
}

bool SharedMemory::claim_failure(int rank, const std::string& cause) const {
  char(&text)[sizeof Seat::cause] = seat(rank).cause;
  const std::size_t length = std::min(cause.size(), sizeof text - 1);
  std::memcpy(text, cause.data(), length);
  text[length] = '\0';
  std::uint32_t nobody = 0;
  return reinterpret_cast<Head*>(memory_)->failed.compare_exchange_strong(
      nobody, static_cast<std::uint32_t>(rank) + 1);
}

void SharedMemory::ring_bell(int rank) const {
  Word& bell = seat(rank).bell;
  bell.fetch_add(1);
  ::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedMemory::sleep(int rank, std::uint32_t seen, std::chrono::nanoseconds most) const {
  if (most.count() <= 0) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (most - seconds).count()};
  ::syscall(SYS_futex, &seat(rank).bell, FUTEX_WAIT, seen, &time, nullptr, 0);
}

}  // namespace dgc::detail
