// Index codings: 16-bit zero runs (the paper's), Rice-coded gaps, bitmap.
//
// A gap is the number of elements skipped between two entries, so that positions increase by
// construction. Rice: a gap is `quotient` one-bits, a zero, and the low `b` bits, with b chosen per
// block of kBlock entries; a quotient of kRiceEscape or more is kRiceEscape one-bits and the gap in
// 32 bits. At 0.1 % uniform density this is 0.8 % above the entropy bound; clusters go below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/error.h"
#include "dgc/wire.h"
#include "wire/rice.h"

namespace dgc::wire {

/// A run word of this value stands for so many zeros and no entry.
inline constexpr std::uint32_t kRunEscape = 0xFFFF;

/// How positions will be written, and in how many bytes.
struct IndexPlan {
  IndexCoding coding = IndexCoding::dense;
  std::size_t bytes = 0;
  RicePlan rice;
};

/// `indices` strictly increasing and below `elements`.
IndexPlan plan_indices(IndexCoding coding, std::span<const std::uint32_t> indices,
                       std::uint64_t elements);
/// The smallest of rice, runs and bitmap; the first of them where they are equal.
IndexPlan smallest_plan(std::span<const std::uint32_t> indices, std::uint64_t elements);

/// Upper bound of an index section's size over all inputs with at most this many entries.
std::size_t index_bound(IndexCoding coding, std::uint64_t entries, std::uint64_t elements) noexcept;

/// Writes the index section. Returns its end.
std::byte* encode_indices(const IndexPlan& plan, std::span<const std::uint32_t> indices,
                          std::uint64_t elements, std::byte* out) noexcept;

/// Reads an index section block by block, without storing more than one block.
class IndexReader {
 public:
  IndexReader(IndexCoding coding, std::span<const std::byte> section,
              std::uint64_t elements) noexcept;

  /// The next `count` (at most kBlock) positions. `out` holds garbage unless the result is ok.
  ErrorCode next_block(std::size_t count, std::uint32_t* out) noexcept;
  /// Checks a whole section of `entries` positions; for a reader that has read nothing yet.
  ErrorCode validate(std::uint64_t entries) noexcept;

 private:
  ErrorCode next_runs(std::size_t count, std::uint32_t* out) noexcept;
  ErrorCode next_bitmap(std::size_t count, std::uint32_t* out) noexcept;
  ErrorCode validate_bitmap(std::uint64_t entries) const noexcept;

  IndexCoding coding_;
  std::span<const std::byte> section_;
  std::uint64_t elements_;
  std::uint64_t next_ = 0;    // smallest position that the next entry can have
  std::size_t consumed_ = 0;  // bytes of section_, for runs and bitmap
  std::uint64_t word_ = 0;    // unread bits of the bitmap word that ends at consumed_
  RiceReader rice_;
};

}  // namespace dgc::wire
