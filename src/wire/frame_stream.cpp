// The sections of values and of positions grow side by side: where the second begins is known from
// the number of entries. Only the length in front is a guess, of one to five bytes.
#include "wire/frame_stream.h"

#include <bit>
#include <cstring>

#include "wire/frame.h"

namespace dgc::wire {
namespace {

/// The header with about as many bytes of positions as there will be.
FrameInfo guessed(FrameInfo info) noexcept {
  info.value_type = ValueType::fp32;
  info.coding = IndexCoding::rice;
  info.value_bytes = value_bytes(info.value_type, info.entries);
  const auto bits = static_cast<std::uint64_t>(std::bit_width(info.elements / info.entries)) + 1;
  info.index_bytes = (info.entries * bits + 7) / 8;
  return info;
}

}  // namespace

bool FrameStream::suits(const FrameInfo& planned, IndexCoding coding) noexcept {
  if (planned.entries == 0 || body_bytes(guessed(planned)) > kMaxElements) return false;
  if (coding == IndexCoding::rice) return true;
  // Gaps of less than two in the mean: there the bitmap is about as small.
  return coding == IndexCoding::automatic && planned.entries * 3 < planned.elements;
}

FrameStream::FrameStream(const FrameInfo& planned, const RiceKernels& kernels,
                         std::span<std::byte> out)
    : info_(guessed(planned)),
      out_(out.data()),
      values_(put_header(info_, out.data())),
      next_(values_),
      rice_(kernels, out.subspan(static_cast<std::size_t>(values_ - out_) + info_.value_bytes)) {}

void FrameStream::add(std::span<const std::uint32_t> indices,
                      std::span<const float> values) noexcept {
  std::memcpy(next_, values.data(), values.size_bytes());
  next_ += values.size_bytes();
  for (std::size_t i = 0; i < indices.size(); i += kBlock) {
    rice_.add(indices.subspan(i, std::min(kBlock, indices.size() - i)));
  }
}

FrameInfo FrameStream::finish() noexcept {
  rice_.finish();
  info_.index_bytes = rice_.bytes();
  const std::uint64_t body = body_bytes(info_);
  if (!rice_.fits() || body > kMaxElements) return {};
  info_.bytes = varint_size(static_cast<std::uint32_t>(body)) + body;
  // Another length of the length moves everything.
  const std::uint64_t contents = info_.value_bytes + info_.index_bytes;
  std::byte* const begin = out_ + (info_.bytes - contents);
  if (begin != values_) std::memmove(begin, values_, contents);
  put_header(info_, out_);
  return info_;
}

bool rice_is_smallest(const FrameInfo& info) noexcept {
  return info.bytes > 0 && info.index_bytes <= index_bound(IndexCoding::bitmap, 0, info.elements) &&
         // Runs take a word for each entry at least.
         info.index_bytes <= 2 * info.entries &&
         info.value_bytes + info.index_bytes < value_bytes(info.value_type, info.elements);
}

}  // namespace dgc::wire
