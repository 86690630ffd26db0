// A server and a hundred requests over ten connections; prints how many answers were right, and a digest of all.
const crypto = require('crypto'), http = require('http'), net = require('net');
const body = crypto.createHash('sha512').update('body').digest('hex').repeat(2000);
const server = http.createServer((request, response) => {
    const parts = [];
    request.on('data', part => parts.push(part));
    request.on('end', () => response.end(Buffer.concat([Buffer.from(body), ...parts])));
});
const post = (port, agent, number) => new Promise((resolve, reject) => {
    const sent = Buffer.alloc(1000 * number, number);
    const request = http.request({ port, host: '127.0.0.1', method: 'POST', agent }, response => {
        const parts = [];
        response.on('data', part => parts.push(part));
        response.on('end', () => {
            const got = Buffer.concat(parts);
            resolve({ got, isRight: got.equals(Buffer.concat([Buffer.from(body), sent])) });
        });
    });
    request.on('error', reject);
    request.end(sent);
});
const halfClose = port => new Promise((resolve, reject) => {
    const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    let text = '';
    socket.on('data', part => { text += part; });
    socket.on('end', () => resolve(text));
    socket.on('error', reject);
    socket.end('hello, and no more');
});
server.listen(0, '127.0.0.1', async () => {
    const { port } = server.address(), agent = new http.Agent({ keepAlive: true, maxSockets: 10 });
    const answers = await Promise.all([...Array(100).keys()].map(number => post(port, agent, number)));
    const digest = crypto.createHash('sha256');
    answers.forEach(answer => digest.update(answer.got));
    console.log(answers.filter(answer => answer.isRight).length, 'of', answers.length, digest.digest('hex'));
    const echo = net.createServer({ allowHalfOpen: true }, socket => socket.pipe(socket)).listen(0, '127.0.0.1', async () => {
        console.log(await halfClose(echo.address().port));
        process.exit(0);
    });
});
