// A zero-initialised array of floats, aligned for vectors and backed by huge pages where possible.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace dgc {

class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(std::size_t count) : count_(count) {
    if (count == 0) return;
    // Scattered accesses to a residual of hundreds of megabytes miss the TLB with small pages.
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t alignment = count * sizeof(float) >= kHugePage ? kHugePage : 64;
    const std::size_t bytes = (count * sizeof(float) + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<float*>(std::aligned_alloc(alignment, bytes)));
    if (!data_) throw std::bad_alloc();
#ifdef __linux__
    if (alignment == kHugePage) ::madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    std::memset(data_.get(), 0, bytes);
  }

  float* data() noexcept { return data_.get(); }
  const float* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return count_; }
  std::span<float> span() noexcept { return {data_.get(), count_}; }

 private:
  struct Free {
    void operator()(float* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t count_ = 0;
};

}  // namespace dgc
