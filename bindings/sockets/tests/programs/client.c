// Says hello to a port of this host. Built statically: no library stands before its calls.
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *text = "hello from a static program\n";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (count < 2)
        return 2;
    address.sin_port = htons((unsigned short)atoi(words[1]));
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        return 1;
    return write(fd, text, strlen(text)) != (ssize_t)strlen(text);
}
