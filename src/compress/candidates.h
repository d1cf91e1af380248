// What a pass collects: entries in index order, with the velocity they had. Memory grows and is
// kept from step to step; it is not cleared, because kernels overwrite it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "compress/kernels.h"

namespace dgc::compress {

class CandidateList {
 public:
  std::size_t size() const noexcept { return size_; }
  void clear() noexcept { size_ = 0; }
  /// The entries; the velocities are garbage unless they were written.
  EntryArrays entries() const noexcept {
    return {indices_.get(), values_.get(), velocities_.get()};
  }

  /// Where `more` entries can be written, and slack after them. Then say how many there were.
  EntryArrays room_for(std::size_t more) {
    if (size_ + more + kSlack > capacity_) grow(std::max(2 * capacity_, size_ + more + kSlack));
    return entries().from(size_);
  }
  void added(std::size_t count) noexcept { size_ += count; }
  /// Forgets all but the first ones.
  void keep(std::size_t count) noexcept { size_ = count; }

 private:
  void grow(std::size_t capacity) {
    enlarge(indices_, capacity);
    enlarge(values_, capacity);
    enlarge(velocities_, capacity);
    capacity_ = capacity;
  }
  template <typename T>
  void enlarge(std::unique_ptr<T[]>& array, std::size_t capacity) const {
    auto larger = std::make_unique_for_overwrite<T[]>(capacity);
    std::copy_n(array.get(), size_, larger.get());
    array = std::move(larger);
  }

  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  std::unique_ptr<float[]> velocities_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// Candidates of a tensor in index order, in the pieces that the pass collected them in.
using CandidateLists = std::span<const CandidateList>;

}  // namespace dgc::compress
