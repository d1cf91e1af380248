// Debian's libgloo-dev leaves out this header, which the headers of its pairs include. Here is what
// these need to be compiled: the layout of two types. Everything that is done with them is inside
// the library. Where Gloo's own header is there, it is found first.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> pointer_;
};

template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
