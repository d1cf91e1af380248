// Rice-coded gaps, block by block: planned, written and read at one to two nanoseconds an entry.
//
// A code is `quotient` one-bits, a zero and the low b bits, lowest first; as a number that is
// ((2·low + 1) << quotient) − 1, one shift. The writer joins two or four codes before it appends
// them. The reader keeps the complement of the next 64 bits in a register, so that the end of a
// unary part is the lowest set bit: it reads several codes from one load, and checks once per group
// that they were all in it. Codes that do not fit such a group, escapes, and the ends of a section
// go the slow and careful way. docs/format.md, "Rice", has the bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dgc/error.h"
#include "wire/bits.h"
#include "wire/values.h"

namespace dgc::wire {

inline constexpr unsigned kRiceEscape = 32;
inline constexpr unsigned kRiceParameterBits = 5;

/// Codes of a whole block, joined to words of at most 56 bits.
struct JoinedCodes {
  std::array<std::uint64_t, kBlock / 2> bits;
  std::array<std::uint64_t, kBlock / 2> widths;
};
/// Whole blocks, one table of functions for each instruction set; all compute the same codes.
struct RiceKernels {
  /// Gaps of kBlock positions, none of which is below `next`. Returns all of them or-ed.
  std::uint32_t (*gaps)(const std::uint32_t* positions, std::uint32_t next,
                        std::uint32_t* out) noexcept;
  /// The sum of kBlock gaps, each shifted right by b.
  std::uint32_t (*quotients)(const std::uint32_t* gaps, unsigned b) noexcept;
  /// The codes of kBlock gaps, each of at most kWidestJoined bits. Returns the number of words: how
  /// many codes there are in a word is up to the table.
  std::size_t (*join)(const std::uint32_t* gaps, unsigned b, JoinedCodes& out) noexcept;
};
inline constexpr unsigned kWidestJoined = 28;
/// The table for the target in use; see active_target() in dgc/target.h.
const RiceKernels& rice_kernels() noexcept;
/// The table for a target; the portable one where it has none of its own.
const RiceKernels& rice_kernels(std::string_view target) noexcept;
const RiceKernels& scalar_rice_kernels() noexcept;

/// What one pass over the positions finds out: enough to know the size, and to write.
struct RicePlan {
  std::vector<std::uint8_t> parameters;  // b of each block
  std::uint64_t bits = 0;

  std::size_t bytes() const noexcept { return static_cast<std::size_t>((bits + 7) / 8); }
};
RicePlan plan_rice(std::span<const std::uint32_t> indices);

/// Writes plan.bytes() bytes. Returns their end.
std::byte* encode_rice(const RicePlan& plan, std::span<const std::uint32_t> indices,
                       std::byte* out) noexcept;

/// Appends to a buffer with room for eight bytes past what is written.
class FastWriter {
 public:
  explicit FastWriter(std::byte* out) noexcept : out_(out) {}
  /// `width` at most 56.
  void put(std::uint64_t value, unsigned width) noexcept {
    window_ |= value << used_;
    used_ += width;
    store(out_, window_);
    out_ += used_ >> 3;
    window_ >>= used_ & ~7u;
    used_ &= 7;
  }
  /// A writer that goes on from here and needs no room.
  BitWriter careful() const noexcept {
    BitWriter writer(out_);
    writer.put(window_, used_);
    return writer;
  }

 private:
  std::byte* out_;
  std::uint64_t window_ = 0;
  unsigned used_ = 0;
};

/// Plans and writes block by block, for positions that come that way. The same bits as with a plan.
class RiceEncoder {
 public:
  RiceEncoder(const RiceKernels& kernels, std::span<std::byte> out) noexcept
      : kernels_(kernels), room_(out.size()), fast_(out.data()) {}
  /// The positions of a block: kBlock of them, or fewer in the last.
  void add(std::span<const std::uint32_t> block) noexcept;
  /// Whether there was room for everything so far. If not, nothing more is written.
  bool fits() const noexcept { return bytes() <= room_; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>((bits_ + 7) / 8); }
  /// Writes what is left, after the last block.
  void finish() noexcept;

 private:
  const RiceKernels& kernels_;
  std::size_t room_;
  std::uint64_t bits_ = 0;
  std::uint32_t next_ = 0;  // smallest position that the next entry can have
  FastWriter fast_;
  std::optional<BitWriter> careful_;  // from the block on that comes close to the end
};

/// Reads a section block by block.
class RiceReader {
 public:
  RiceReader() = default;
  RiceReader(std::span<const std::byte> section, std::uint64_t elements) noexcept
      : data_(section.data()), bytes_(section.size()), elements_(elements) {}

  /// The next `count` (at most kBlock) positions; `out` holds garbage unless the result is ok.
  ErrorCode next_block(std::size_t count, std::uint32_t* out) noexcept;
  /// The same without the positions.
  ErrorCode skip_block(std::size_t count) noexcept;
  /// Nothing but zero padding may follow the last entry.
  ErrorCode finish() const noexcept;

 private:
  template <bool kStore>
  ErrorCode read_block(std::size_t count, std::uint32_t* out) noexcept;
  template <bool kStore, std::size_t kGroup>
  void read_codes(std::size_t count, unsigned b, std::uint32_t* out) noexcept;
  std::uint64_t read_one(unsigned b) noexcept;
  /// The next `width` (at most 57) bits; zeros past the end.
  std::uint64_t take(unsigned width) noexcept;
  std::uint64_t peek() const noexcept;

  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t position_ = 0;  // in bits
  std::uint64_t elements_ = 0;
  std::uint64_t next_ = 0;  // smallest position that the next entry can have
};

}  // namespace dgc::wire
