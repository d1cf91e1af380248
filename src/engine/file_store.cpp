// A rendezvous in a folder: one file for each key.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "dgc/engines.h"

namespace dgc {
namespace {

namespace fs = std::filesystem;

class FileStore final : public RendezvousStore {
 public:
  explicit FileStore(fs::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    if (fs::is_directory(folder_, error)) return;
    throw Error(ErrorCode::io, "rendezvous", folder_.string(), "is not a folder",
                "make a new one that all ranks see");
  }

  void set(const std::string& key, std::span<const std::byte> value) override {
    const fs::path path = folder_ / key;
    // Renamed into place, so that nobody reads half of it. Unique also among threads.
    static std::atomic<unsigned> serial{0};
    const fs::path temporary =
        path.string() + fmt::format(".tmp{}-{}-{}", this_host(), ::getpid(), ++serial);
    // Another rank that closes may take the empty folder away in between: try again.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      if (!write(temporary, value)) continue;
      if (::rename(temporary.c_str(), path.c_str()) == 0) return;
    }
    throw Error(ErrorCode::io, "rendezvous", path.string(),
                "cannot write: " + std::generic_category().message(errno));
  }

  std::optional<std::vector<std::byte>> get(const std::string& key,
                                            std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kLongestPause)) {
      if (auto value = try_get(key)) return value;
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return std::nullopt;
      std::this_thread::sleep_for(
          std::min<std::chrono::steady_clock::duration>(pause, deadline - now));
    }
  }

  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    std::ifstream file(folder_ / key, std::ios::binary);
    if (!file) return std::nullopt;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(text));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

  void remove(const std::string& key) noexcept override {
    const std::string path = (folder_ / key).string();
    ::unlink(path.c_str());
    // The folder of a group goes with its last key; rmdir refuses while others are left.
    const std::string parent = (folder_ / key).parent_path().string();
    if (parent != folder_.string()) ::rmdir(parent.c_str());
  }

 private:
  static constexpr int kAttempts = 20;
  static constexpr std::chrono::milliseconds kLongestPause{20};

  static bool write(const fs::path& path, std::span<const std::byte> value) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) return false;
    // Values are a few hundred bytes: a short write is a full disk.
    const bool written =
        ::write(descriptor, value.data(), value.size()) == static_cast<ssize_t>(value.size());
    const int cause = errno;
    ::close(descriptor);
    if (!written) ::unlink(path.c_str());
    errno = cause;
    return written;
  }

  fs::path folder_;
};

}  // namespace

std::shared_ptr<RendezvousStore> make_file_store(const fs::path& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace dgc
