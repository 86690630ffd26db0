import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;

/** A server of threads, and clients with streams and with a selector; prints whether they got back what they sent, and a digest of it. */
public class Server {
    static void serve(Socket socket) {
        try (socket) {
            InputStream in = socket.getInputStream();
            byte[] buffer = new byte[9999];
            for (int count; (count = in.read(buffer)) > 0;) socket.getOutputStream().write(buffer, 0, count);
        } catch (Exception error) {
            System.out.println(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ServerSocket listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        Thread acceptor = new Thread(() -> {
            try {
                while (true) {
                    Socket socket = listener.accept();
                    new Thread(() -> serve(socket)).start();
                }
            } catch (Exception error) {
                System.out.println(error);
            }
        });
        acceptor.setDaemon(true);
        acceptor.start();
        byte[] data = new byte[400_000];
        new Random(1).nextBytes(data);
        for (int round = 0; round < 5; round++) {
            Socket client = new Socket("127.0.0.1", listener.getLocalPort());
            client.setSoTimeout(100);
            try {
                client.getInputStream().read();
            } catch (SocketTimeoutException expected) {
                System.out.println("timed out");
            }
            client.setSoTimeout(10_000);
            Thread writer = new Thread(() -> {
                try {
                    client.getOutputStream().write(data);
                    client.shutdownOutput();
                } catch (Exception error) {
                    System.out.println(error);
                }
            });
            writer.start();
            byte[] got = client.getInputStream().readAllBytes();
            System.out.println(Arrays.equals(got, data) + " " + Arrays.hashCode(got));
            client.close();
        }
        Selector selector = Selector.open();
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.connect(new InetSocketAddress("127.0.0.1", listener.getLocalPort()));
        channel.register(selector, SelectionKey.OP_CONNECT);
        ByteBuffer out = ByteBuffer.wrap(data), in = ByteBuffer.allocate(data.length);
        while (in.hasRemaining() && selector.select(10_000) > 0) {
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isConnectable()) {
                    channel.finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) channel.write(out);
                if (!out.hasRemaining()) key.interestOps(SelectionKey.OP_READ);
                if (key.isReadable()) channel.read(in);
            }
            selector.selectedKeys().clear();
        }
        System.out.println(Arrays.equals(in.array(), data) + " " + Arrays.hashCode(in.array()));
        System.exit(0);
    }
}
