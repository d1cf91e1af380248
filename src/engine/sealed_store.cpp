#include "engine/sealed_store.h"

#include <utility>

#include "engine/bytes.h"
#include "engine/poll_store.h"
#include "engine/secret.h"

namespace dgc::detail {
namespace {

class SealedStore final : public RendezvousStore {
 public:
  SealedStore(std::shared_ptr<RendezvousStore> store, std::string secret)
      : store_(std::move(store)), secret_(std::move(secret)) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    std::vector<std::byte> sealed;
    append(sealed, code(key, value));
    append(sealed, value);
    store_->set(key, sealed);
  }

  std::optional<std::vector<std::byte>> get(const std::string& key,
                                            std::chrono::milliseconds timeout) override {
    // Not the store's own wait: it ends with whatever a stranger wrote.
    return detail::poll_store(*this, key, timeout);
  }

  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    const auto sealed = store_->try_get(key);
    if (!sealed || sealed->size() < sizeof(Mac)) return std::nullopt;
    const auto value = std::span(*sealed).subspan(sizeof(Mac));
    if (!same(std::span(*sealed).first(sizeof(Mac)), code(key, value))) return std::nullopt;
    return std::vector<std::byte>(value.begin(), value.end());
  }

  void remove(const std::string& key) noexcept override { store_->remove(key); }

 private:
  Mac code(const std::string& key, std::span<const std::byte> value) const {
    return mac(bytes_of(secret_), {bytes_of("dgc value 1"), bytes_of(key), value});
  }

  std::shared_ptr<RendezvousStore> store_;
  std::string secret_;
};

}  // namespace

std::shared_ptr<RendezvousStore> seal_store(std::shared_ptr<RendezvousStore> store,
                                            std::string secret) {
  if (secret.empty()) return store;
  return std::make_shared<SealedStore>(std::move(store), std::move(secret));
}

}  // namespace dgc::detail
