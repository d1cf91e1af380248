#include "compress/state_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "base/file.h"
#include "dgc/error.h"
#include "dgc/wire.h"

namespace dgc {
namespace compress {
namespace {

constexpr char kMagic[4] = {'D', 'G', 'C', 'S'};
constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kHasVelocity = 1;
constexpr std::uint8_t kDense = 1;
constexpr std::size_t kHeaderBytes = 28;
constexpr std::size_t kTrailerBytes = 8;

/// Takes fields off the front of a buffer.
class Cursor {
 public:
  Cursor(std::span<const std::byte> rest, const std::string& subject)
      : rest_(rest), subject_(subject) {}

  [[noreturn]] void fail(ErrorCode code, std::string problem) const {
    throw Error(code, "load", subject_, std::move(problem),
                "use another copy of the state; nothing was loaded");
  }

  std::span<const std::byte> bytes(std::uint64_t count) {
    if (count > rest_.size()) fail(ErrorCode::truncated, "ends early");
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const std::string& subject_;
};

StateInfo::Tensor take_tensor(Cursor& cursor) {
  StateInfo::Tensor tensor;
  const auto name = cursor.bytes(cursor.take<std::uint16_t>());
  tensor.spec.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  const auto flags = cursor.take<std::uint8_t>();
  if ((flags & ~kDense) != 0)
    cursor.fail(ErrorCode::reserved_bits, "has reserved tensor flags set");
  tensor.spec.dense = (flags & kDense) != 0;
  const auto dimensions = cursor.take<std::uint8_t>();
  std::uint64_t elements = 1;
  for (int d = 0; d < dimensions; ++d) {
    const auto size = cursor.take<std::int64_t>();
    if (size < 0 || size > static_cast<std::int64_t>(kMaxElements)) {
      cursor.fail(ErrorCode::bad_state,
                  fmt::format("tensor '{}' has a dimension of {}", tensor.spec.name, size));
    }
    tensor.spec.shape.push_back(size);
    // Both factors are below 2^32, so the product does not wrap before it is checked.
    elements *= static_cast<std::uint64_t>(size);
    if (elements > kMaxElements) {
      cursor.fail(ErrorCode::bad_state, fmt::format("tensor '{}' is too large", tensor.spec.name));
    }
  }
  return tensor;
}

std::span<const std::byte> take_array(Cursor& cursor, const TensorSpec& spec, const char* what) {
  const auto array = cursor.bytes(spec.elements() * sizeof(float));
  for (std::size_t i = 0; i < array.size(); i += sizeof(float)) {
    float value = 0.0f;
    std::memcpy(&value, array.data() + i, sizeof value);
    if (!std::isfinite(value)) {
      cursor.fail(ErrorCode::nonfinite_value,
                  fmt::format("{} of tensor '{}' is {} at index {}", what, spec.name, value,
                              i / sizeof(float)));
    }
  }
  return array;
}

/// Streams fields to a file and into its checksum.
class Writer {
 public:
  explicit Writer(const std::filesystem::path& path) : file_(path), hash_(XXH64_createState()) {
    if (!hash_) throw std::bad_alloc();
    XXH64_reset(hash_.get(), 0);
  }

  void bytes(std::span<const std::byte> data) {
    XXH64_update(hash_.get(), data.data(), data.size());
    file_.write(data);
  }
  template <typename T>
  void put(const T& value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void finish() {
    const auto digest = static_cast<std::uint64_t>(XXH64_digest(hash_.get()));
    file_.write(std::as_bytes(std::span(&digest, 1)));
    file_.commit();
  }

 private:
  AtomicFile file_;
  struct Free {
    void operator()(XXH64_state_t* state) const noexcept { XXH64_freeState(state); }
  };
  std::unique_ptr<XXH64_state_t, Free> hash_;
};

}  // namespace

StateView parse_state(std::span<const std::byte> contents, const std::string& subject) {
  Cursor cursor(contents, subject);
  if (std::memcmp(cursor.bytes(4).data(), kMagic, 4) != 0) {
    cursor.fail(ErrorCode::bad_magic, "does not begin with \"DGCS\"");
  }
  if (contents.size() < kHeaderBytes + kTrailerBytes)
    cursor.fail(ErrorCode::truncated, "ends early");
  const auto version = cursor.take<std::uint8_t>();
  if (version != kVersion) {
    cursor.fail(ErrorCode::bad_version,
                fmt::format("version {}, this library reads {}", version, kVersion));
  }
  std::uint64_t stored = 0;
  const std::size_t hashed = contents.size() - kTrailerBytes;
  std::memcpy(&stored, contents.data() + hashed, sizeof stored);
  if (stored != XXH64(contents.data(), hashed, 0)) {
    cursor.fail(ErrorCode::checksum_mismatch,
                "is damaged or cut short: its checksum does not match");
  }

  StateView view;
  const auto flags = cursor.take<std::uint8_t>();
  if ((flags & ~kHasVelocity) != 0 || cursor.take<std::uint16_t>() != 0) {
    cursor.fail(ErrorCode::reserved_bits, "has reserved bits set");
  }
  view.info.has_velocity = (flags & kHasVelocity) != 0;
  view.info.rank = cursor.take<std::uint32_t>();
  view.info.workers = cursor.take<std::uint32_t>();
  if (view.info.rank >= view.info.workers) {
    cursor.fail(ErrorCode::bad_state,
                fmt::format("rank {} of {} workers", view.info.rank, view.info.workers));
  }
  view.info.step = cursor.take<std::uint64_t>();
  const auto tensors = cursor.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < tensors; ++i) view.info.tensors.push_back(take_tensor(cursor));
  for (const StateInfo::Tensor& tensor : view.info.tensors) {
    StateView::Arrays& arrays = view.arrays.emplace_back();
    if (view.info.has_velocity) arrays.velocity = take_array(cursor, tensor.spec, "velocity");
    arrays.residual = take_array(cursor, tensor.spec, "residual");
  }
  if (cursor.left() < kTrailerBytes) cursor.fail(ErrorCode::truncated, "ends early");
  if (cursor.left() > kTrailerBytes) {
    cursor.fail(ErrorCode::trailing_bytes, "has bytes after its last tensor");
  }
  view.info.bytes = contents.size();
  return view;
}

void write_state(const State& state, const std::filesystem::path& file) {
  Writer out(file);
  out.put(kMagic);
  out.put(kVersion);
  out.put(static_cast<std::uint8_t>(state.has_velocity() ? kHasVelocity : 0));
  out.put(std::uint16_t{0});
  out.put(state.rank());
  out.put(state.workers());
  out.put(state.step());
  const std::vector<TensorSpec>& tensors = state.tensors();
  out.put(static_cast<std::uint32_t>(tensors.size()));
  for (const TensorSpec& spec : tensors) {
    out.put(static_cast<std::uint16_t>(spec.name.size()));
    out.bytes(std::as_bytes(std::span(spec.name)));
    out.put(static_cast<std::uint8_t>(spec.dense ? kDense : 0));
    out.put(static_cast<std::uint8_t>(spec.shape.size()));
    out.bytes(std::as_bytes(std::span(spec.shape)));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.bytes(std::as_bytes(state.velocity(i)));
    out.bytes(std::as_bytes(state.residual(i)));
  }
  out.finish();
}

}  // namespace compress

StateInfo inspect_state(std::span<const std::byte> contents) {
  compress::StateView view = compress::parse_state(contents, "state file");
  const auto norm_of = [](std::span<const std::byte> array, std::uint64_t* nonzero) {
    double sum = 0.0;
    for (std::size_t i = 0; i < array.size(); i += sizeof(float)) {
      float value = 0.0f;
      std::memcpy(&value, array.data() + i, sizeof value);
      sum += static_cast<double>(value) * value;
      if (nonzero != nullptr) *nonzero += value != 0.0f;
    }
    return std::sqrt(sum);
  };
  for (std::size_t i = 0; i < view.arrays.size(); ++i) {
    StateInfo::Tensor& tensor = view.info.tensors[i];
    tensor.velocity_norm = norm_of(view.arrays[i].velocity, nullptr);
    tensor.residual_norm = norm_of(view.arrays[i].residual, &tensor.residual_nonzero);
  }
  return view.info;
}

}  // namespace dgc
