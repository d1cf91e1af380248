// Messages from anywhere: whatever the bytes, the decoders agree with each other, reject with an
// Error, and write nothing before a message is found good.
#include <cmath>

#include "dgc/wire.h"
#include "support.h"

namespace {

using namespace dgc;
using fuzz::outcome;
using fuzz::require;

constexpr std::uint64_t kMaxEntries = 1 << 16;
constexpr float kAlpha = -0.5f;

/// Tensors in one array, with guards before, between and after them.
class Targets {
 public:
  explicit Targets(std::span<const std::size_t> sizes) {
    std::size_t total = kGuard;
    for (const std::size_t size : sizes) total += size + kGuard;
    memory_.resize(total);
    for (std::size_t i = 0; i < total; ++i) memory_[i] = static_cast<float>(i + 1);
    expected_ = memory_;
    std::size_t begin = kGuard;
    for (const std::size_t size : sizes) {
      spans_.push_back(std::span(memory_).subspan(begin, size));
      expected_spans_.push_back(std::span(expected_).subspan(begin, size));
      begin += size + kGuard;
    }
  }

  /// Decodes into the targets. They must come out as `accepted` says, or untouched on an Error.
  ErrorCode decode(std::span<const std::byte> message, const std::vector<Entries>* accepted) {
    const ErrorCode code = outcome([&] { decode_add(CheckedMessage(message), spans_, kAlpha); });
    if (code == ErrorCode::ok) {
      require(accepted != nullptr, "decode_add accepts only what was checked");
      for (const Entries& entries : *accepted) {
        require(entries.tensor < spans_.size(), "decode_add knows the tensor");
        const std::span<float> target = expected_spans_[entries.tensor];
        require(target.size() == entries.elements, "decode_add compares sizes");
        for (std::size_t i = 0; i < entries.indices.size(); ++i) {
          target[entries.indices[i]] += kAlpha * entries.values[i];
        }
      }
    }
    require(fuzz::same_bits(memory_, expected_), "targets hold the message or are untouched");
    return code;
  }

 private:
  static constexpr std::size_t kGuard = 8;
  std::vector<float> memory_;
  std::vector<float> expected_;
  std::vector<std::span<float>> spans_;
  std::vector<std::span<float>> expected_spans_;
};

/// A notice comes out as it went in: writing what was read gives the same bytes.
void check_notice(const CheckedMessage& message) {
  if (!message.header().notice) return;
  std::vector<std::byte> again(kMessageOverhead + notice_bytes(*message.header().notice));
  MessageWriter(again, message.header()).finish();
  const CheckedMessage second(again);
  const Notice& notice = *second.header().notice;
  const Notice& first = *message.header().notice;
  require(notice.bucket == first.bucket && notice.present == first.present &&
              notice.stop == first.stop && notice.nonfinite == first.nonfinite &&
              notice.parameters == first.parameters &&
              notice.failure.has_value() == first.failure.has_value(),
          "a notice survives");
  if (!notice.failure) return;
  require(notice.failure->code == first.failure->code &&
              notice.failure->text == first.failure->text && message.frames().empty(),
          "a failure survives, and has no frames");
}

void check_entries(const CheckedMessage& message, const std::vector<Entries>& all) {
  require(all.size() == message.frames().size(), "as many entry lists as frames");
  const auto& notice = message.header().notice;
  std::uint64_t bytes = kMessageOverhead + (notice ? notice_bytes(*notice) : 0);
  for (std::size_t f = 0; f < all.size(); ++f) {
    const FrameInfo& frame = message.frames()[f];
    const Entries& entries = all[f];
    bytes += frame.bytes;
    require(frame.bytes > frame.value_bytes + frame.index_bytes, "a frame has a header");
    require(entries.tensor == frame.tensor && entries.elements == frame.elements &&
                entries.indices.size() == frame.entries && entries.values.size() == frame.entries,
            "entries are those of their frame");
    require(f == 0 || entries.tensor > all[f - 1].tensor, "tensors increase");
    for (std::size_t i = 0; i < entries.indices.size(); ++i) {
      require(entries.indices[i] < entries.elements, "indices are in range");
      require(i == 0 || entries.indices[i] > entries.indices[i - 1], "indices increase");
      require(std::isfinite(entries.values[i]), "values are finite");
    }
  }
  require(bytes == message.bytes().size(), "frames fill the message");
}

/// Targets made to fit an accepted message, and ones that do not fit its last frame.
void check_fitting_targets(std::span<const std::byte> message, const std::vector<Entries>& all) {
  if (all.empty() || all.back().tensor >= 64) return;
  std::vector<std::size_t> sizes(all.back().tensor + 1, 3);
  for (const Entries& entries : all) {
    if (entries.elements > kMaxEntries) return;
    sizes[entries.tensor] = static_cast<std::size_t>(entries.elements);
  }
  require(Targets(sizes).decode(message, &all) == ErrorCode::ok, "fitting targets are accepted");
  ++sizes.back();
  require(Targets(sizes).decode(message, &all) == ErrorCode::shape_mismatch, "sizes must fit");
  sizes.pop_back();
  require(Targets(sizes).decode(message, &all) == ErrorCode::unknown_tensor, "tensors must exist");
}

void check_message(std::span<const std::byte> message) {
  static constexpr std::size_t kSizes[] = {1, 5, 64, 300, 1000};
  std::optional<CheckedMessage> checked;
  if (outcome([&] { checked.emplace(message); }) != ErrorCode::ok) {
    Targets(kSizes).decode(message, nullptr);
    return;
  }
  const CheckedMessage& info = *checked;
  require(info.bytes().size() == message.size(), "a message is the whole buffer");
  check_notice(info);
  std::uint64_t total = 0;
  for (const FrameInfo& frame : info.frames()) total += frame.entries;
  const std::uint64_t below = total > kMaxEntries ? kMaxEntries : total - 1;
  if (total > 0) {
    require(outcome([&] { decode_entries(info, below); }) == ErrorCode::limit_exceeded,
            "decode_entries keeps to its limit");
  }
  if (total > kMaxEntries) return;
  const std::vector<Entries> all = decode_entries(info, total);
  check_entries(info, all);
  Targets(kSizes).decode(message, &all);
  check_fitting_targets(message, all);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  check_message(message);
  if (size >= kMessageOverhead) {
    std::vector<std::byte> repaired(message.begin(), message.end());
    const std::uint64_t length = size;
    std::memcpy(repaired.data() + 24, &length, sizeof length);
    fuzz::fix_checksum(repaired);
    check_message(repaired);
  }
  return 0;
}
