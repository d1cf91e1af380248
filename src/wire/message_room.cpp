// Frames that are encoded where they will lie in the message: nobody copies them.
#include <cstring>

#include "dgc/wire.h"

namespace dgc {

std::span<std::byte> MessageWriter::room() const noexcept {
  return out_.subspan(size_, out_.size() - kMessageOverhead);
}

void MessageWriter::settle(std::uint32_t tensor, std::span<const std::byte> frame) {
  if (frame.empty()) return;
  check_order(tensor);
  if (frame.data() != out_.data() + size_) {
    std::memmove(out_.data() + size_, frame.data(), frame.size());
  }
  size_ += frame.size();
  last_tensor_ = tensor;
  ++frames_;
}

}  // namespace dgc
