// The headers compile as C++ and link: one use of each.
#include <suci.h>
#include <tsumuji.h>

#include <cstring>

int main()
{
    tsumuji *node = nullptr;
    datagram_addrdb *addrdb = datagram_addrdb_new();
    bool as_built = std::strcmp(tsumuji_version(), TSUMUJI_VERSION) == 0;
    bool refused = tsumuji_open_cluster("/nowhere/lab.toml", 0, nullptr, &node) == TSUMUJI_EOPEN && node == nullptr;
    datagram_addrdb_free(addrdb);
    return as_built && refused ? 0 : 1;
}
