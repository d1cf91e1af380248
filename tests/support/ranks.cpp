#include "support/ranks.h"

#include <exception>
#include <thread>

namespace dgc::test {

std::vector<std::optional<Error>> run_ranks(int size, std::chrono::milliseconds timeout,
                                            const std::function<void(Group&)>& work) {
  auto groups = make_local_groups(size, timeout);
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> others(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < groups.size(); ++r) {
      threads.emplace_back([&, r, group = std::move(groups[r])]() mutable {
        try {
          work(*group);
        } catch (const Error& error) {
          errors[r] = error;
        } catch (...) {
          others[r] = std::current_exception();
        }
        group.reset();
      });
    }
  }
  for (const auto& other : others) {
    if (other) std::rethrow_exception(other);
  }
  return errors;
}

}  // namespace dgc::test
