// The codings themselves; indices.h has the scheme and docs/format.md, "Positions", the bits.
#include "wire/indices.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "wire/bits.h"
#include "wire/values.h"

namespace dgc::wire {
namespace {

std::byte* encode_runs(std::span<const std::uint32_t> indices, std::byte* out) noexcept {
  const auto put = [&out](std::uint32_t run) {
    store(out, static_cast<std::uint16_t>(run));
    out += 2;
  };
  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    std::uint32_t gap = index - next;
    for (; gap >= kRunEscape; gap -= kRunEscape) put(kRunEscape);
    put(gap);
    next = index + 1;
  }
  return out;
}

std::byte* encode_bitmap(std::span<const std::uint32_t> indices, std::uint64_t elements,
                         std::byte* out) noexcept {
  std::byte* const end = out + (elements + 7) / 8;
  std::fill(out, end, std::byte{0});
  for (const std::uint32_t index : indices) out[index >> 3] |= std::byte{1} << (index & 7);
  return end;
}

}  // namespace

IndexPlan plan_indices(IndexCoding coding, std::span<const std::uint32_t> indices,
                       std::uint64_t elements) {
  IndexPlan plan{.coding = coding};
  switch (coding) {
    case IndexCoding::runs: {
      std::size_t words = indices.size();
      std::uint32_t next = 0;
      for (const std::uint32_t index : indices) {
        words += (index - next) / kRunEscape;
        next = index + 1;
      }
      plan.bytes = words * 2;
      break;
    }
    case IndexCoding::rice:
      plan.rice = plan_rice(indices);
      plan.bytes = plan.rice.bytes();
      break;
    case IndexCoding::bitmap:
      plan.bytes = (elements + 7) / 8;
      break;
    default:
      break;
  }
  return plan;
}

IndexPlan smallest_plan(std::span<const std::uint32_t> indices, std::uint64_t elements) {
  IndexPlan best = plan_indices(IndexCoding::rice, indices, elements);
  // Runs take a word for each entry at least.
  if (indices.size() * 2 < best.bytes) {
    IndexPlan runs = plan_indices(IndexCoding::runs, indices, elements);
    if (runs.bytes < best.bytes) best = std::move(runs);
  }
  IndexPlan bitmap = plan_indices(IndexCoding::bitmap, indices, elements);
  if (bitmap.bytes < best.bytes) best = std::move(bitmap);
  return best;
}

std::size_t index_bound(IndexCoding coding, std::uint64_t entries,
                        std::uint64_t elements) noexcept {
  switch (coding) {
    case IndexCoding::runs:
      return 2 * (entries + elements / kRunEscape);
    case IndexCoding::rice: {
      // At b = floor(log2(mean gap)) a block of c entries costs at most c (b + 1) bits, 2c of unary
      // and 2c of escapes; log2 is concave, so equal blocks are the worst case.
      // The real logarithm, unlike its floor, makes the bound grow with the number of entries.
      if (entries == 0) return 0;
      const double k = static_cast<double>(entries);
      const double per_entry = 5.0 + std::log2(static_cast<double>(elements) / k);
      const double bits =
          k * per_entry + static_cast<double>(blocks_of(entries) * kRiceParameterBits);
      return static_cast<std::size_t>(bits / 8.0) + 2;
    }
    case IndexCoding::bitmap:
      return (elements + 7) / 8;
    default:
      return 0;
  }
}

std::byte* encode_indices(const IndexPlan& plan, std::span<const std::uint32_t> indices,
                          std::uint64_t elements, std::byte* out) noexcept {
  switch (plan.coding) {
    case IndexCoding::runs:
      return encode_runs(indices, out);
    case IndexCoding::rice:
      return encode_rice(plan.rice, indices, out);
    case IndexCoding::bitmap:
      return encode_bitmap(indices, elements, out);
    default:
      return out;
  }
}

IndexReader::IndexReader(IndexCoding coding, std::span<const std::byte> section,
                         std::uint64_t elements) noexcept
    : coding_(coding), section_(section), elements_(elements), rice_(section, elements) {}

ErrorCode IndexReader::next_block(std::size_t count, std::uint32_t* out) noexcept {
  switch (coding_) {
    case IndexCoding::runs:
      return next_runs(count, out);
    case IndexCoding::rice:
      return rice_.next_block(count, out);
    case IndexCoding::bitmap:
      return next_bitmap(count, out);
    default:
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint32_t>(next_ + i);
      next_ += count;
      return ErrorCode::ok;
  }
}

ErrorCode IndexReader::next_runs(std::size_t count, std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < count;) {
    if (section_.size() - consumed_ < 2) return ErrorCode::truncated;
    const std::uint32_t run = load<std::uint16_t>(section_.data() + consumed_);
    consumed_ += 2;
    next_ += run;
    if (next_ >= elements_) return ErrorCode::index_out_of_range;
    if (run == kRunEscape) continue;
    out[i++] = static_cast<std::uint32_t>(next_++);
  }
  return ErrorCode::ok;
}

ErrorCode IndexReader::next_bitmap(std::size_t count, std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < count;) {
    if (word_ == 0) {
      if (consumed_ == section_.size()) return ErrorCode::bad_count;
      const std::size_t bytes = std::min<std::size_t>(8, section_.size() - consumed_);
      std::memcpy(&word_, section_.data() + consumed_, bytes);
      next_ = consumed_ * 8;
      consumed_ += bytes;
      continue;
    }
    const std::uint64_t index = next_ + static_cast<unsigned>(std::countr_zero(word_));
    if (index >= elements_) return ErrorCode::bad_count;  // only padding is left
    word_ &= word_ - 1;
    out[i++] = static_cast<std::uint32_t>(index);
  }
  return ErrorCode::ok;
}

ErrorCode IndexReader::validate_bitmap(std::uint64_t entries) const noexcept {
  const std::uint64_t expected = (elements_ + 7) / 8;
  if (section_.size() < expected) return ErrorCode::truncated;
  if (section_.size() > expected) return ErrorCode::trailing_bytes;
  std::uint64_t set = 0;
  std::size_t at = 0;
  for (; at + 8 <= section_.size(); at += 8) {
    set += static_cast<unsigned>(std::popcount(load<std::uint64_t>(section_.data() + at)));
  }
  std::uint64_t last = 0;
  if (at < section_.size()) std::memcpy(&last, section_.data() + at, section_.size() - at);
  set += static_cast<unsigned>(std::popcount(last));
  const auto used = static_cast<unsigned>(elements_ % 8);
  const unsigned padding =
      used == 0 ? 0 : std::to_integer<unsigned>(section_[section_.size() - 1]) >> used;
  if (set - static_cast<unsigned>(std::popcount(padding)) != entries) return ErrorCode::bad_count;
  return padding == 0 ? ErrorCode::ok : ErrorCode::reserved_bits;
}

ErrorCode IndexReader::validate(std::uint64_t entries) noexcept {
  if (coding_ == IndexCoding::bitmap) return validate_bitmap(entries);
  if (coding_ == IndexCoding::dense) {
    return section_.empty() ? ErrorCode::ok : ErrorCode::trailing_bytes;
  }
  std::array<std::uint32_t, kBlock> positions;
  for (std::uint64_t left = entries; left > 0;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, kBlock));
    const ErrorCode code =
        coding_ == IndexCoding::rice ? rice_.skip_block(count) : next_runs(count, positions.data());
    if (code != ErrorCode::ok) return code;
    left -= count;
  }
  if (coding_ == IndexCoding::rice) return rice_.finish();
  return consumed_ == section_.size() ? ErrorCode::ok : ErrorCode::trailing_bytes;
}

}  // namespace dgc::wire
