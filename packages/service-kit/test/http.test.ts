import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';

import { afterEach, describe, expect, it } from 'vitest';

import { createHttpServer, createLogger, ServiceError, type HttpServer, type HttpServerOptions } from '../src/index.js';

const servers: HttpServer[] = [];
afterEach(() => Promise.all(servers.splice(0).map((server) => server.close(0))));

function create(options: Partial<HttpServerOptions> = {}): HttpServer {
  const server = createHttpServer({
    name: 'test',
    host: '127.0.0.1',
    logger: createLogger('test', 'silent'),
    bodyLimitBytes: 1024,
    toReply: (error) => {
      if (!(error instanceof ServiceError)) return { status: 500, body: { code: 'other' } };
      const { code, message } = error;
      return { status: code === 'PERMISSION_DENIED' ? 403 : 400, body: { code, message } };
    },
    ...options,
  });
  servers.push(server);
  server.app.get('/hello', () => ({ hello: true }));
  server.app.post('/echo', (request) => request.body);
  server.app.get('/broken', () => {
    throw new Error('hunter2');
  });
  return server;
}

async function send(
  port: number,
  headers: Record<string, string>,
  path = '/hello',
): Promise<{ status: number; body: string }> {
  const call = request({ host: '127.0.0.1', port, path, headers, setHost: false, agent: false });
  call.end();
  const [response] = (await once(call, 'response')) as [IncomingMessage];
  let body = '';
  for await (const part of response) body += String(part);
  return { status: response.statusCode ?? 0, body };
}

describe('the guard', () => {
  it('lets programs of this machine in', async () => {
    const { port } = await create().listen(0);
    for (const host of [`127.0.0.1:${port}`, `localhost:${port}`, `LOCALHOST:${port}`, `[::1]:${port}`]) {
      expect((await send(port, { host })).status, host).toBe(200);
      expect((await send(port, { host, origin: `http://${host}` })).status, host).toBe(200);
    }
    const host = `127.0.0.1:${port}`;
    expect((await send(port, { host, 'sec-fetch-site': 'same-origin' })).status).toBe(200);
  });

  // promise: DNS rebinding does not help it.
  it('refuses the Host of a rebound name, another port, or none', async () => {
    const { port } = await create().listen(0);
    const foreign = [
      `evil.example:${port}`,
      `localhost.evil.example:${port}`,
      `127.0.0.1.evil.example:${port}`,
      `127.0.0.1@evil.example:${port}`,
      `[::1].evil.example:${port}`,
      `0.0.0.0:${port}`,
      `[::ffff:127.0.0.1]:${port}`,
      `127.0.0.1:${port === 65_535 ? 1 : port + 1}`,
      '127.0.0.1',
      'localhost',
    ];
    for (const host of foreign) {
      const { status, body } = await send(port, { host });
      expect(status, host).toBe(403);
      expect(JSON.parse(body), host).toMatchObject({ code: 'PERMISSION_DENIED' });
    }
    const socket = connect(port, '127.0.0.1');
    socket.write('GET /hello HTTP/1.0\r\n\r\n');
    let answer = '';
    for await (const part of socket) answer += String(part);
    expect(answer).toMatch(/^HTTP\/1\.1 403 /);
  });

  // promise: A web page in the browser of the user cannot use the HTTP interfaces.
  it('refuses a foreign page even with the right Host, for paths that do not exist too', async () => {
    const { port } = await create().listen(0);
    const host = `127.0.0.1:${port}`;
    for (const origin of [
      'https://evil.example',
      'null',
      `https://${host}`,
      'http://127.0.0.1:1',
      `http://${host}.evil.example`,
    ]) {
      expect((await send(port, { host, origin })).status, origin).toBe(403);
      expect((await send(port, { host, origin }, '/nowhere')).status, origin).toBe(403);
    }
    for (const site of ['cross-site', 'same-site']) {
      expect((await send(port, { host, 'sec-fetch-site': site })).status, site).toBe(403);
    }
  });
});

describe('createHttpServer', () => {
  // promise: The HTTP interfaces listen on loopback only.
  it.each(['0.0.0.0', '::', '192.168.1.2', 'example.org'])('does not listen on %s', (host) => {
    expect(() => create({ host })).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }) as Error);
  });

  it('says that a port is taken', async () => {
    const { port } = await create().listen(0);
    await expect(create().listen(port)).rejects.toMatchObject({ code: 'PORT_IN_USE' });
  });

  it('gives the API one kind of error for unknown paths, broken and long bodies, without what they hold', async () => {
    const { url } = await create().listen(0);
    const post = (body: string, type = 'application/json') =>
      fetch(`${url}/echo`, { method: 'POST', body, headers: { 'content-type': type } });
    const expectError = async (response: Response, status: number, code: string) => {
      const body = await response.text();
      expect([response.status, JSON.parse(body)]).toMatchObject([status, { code }]);
      expect(body).not.toContain('hunter2');
    };
    await expectError(await fetch(`${url}/nowhere`), 400, 'NOT_FOUND');
    await expectError(await fetch(`${url}/hunter2%zz`), 400, 'INVALID_REQUEST');
    await expectError(await post('{"a":hunter2'), 400, 'INVALID_REQUEST');
    await expectError(await post(''), 400, 'INVALID_REQUEST');
    await expectError(await post('{"__proto__":{}}'), 400, 'INVALID_REQUEST');
    await expectError(await post('hunter2', 'text/hunter2'), 400, 'INVALID_REQUEST');
    await expectError(await post(JSON.stringify('x'.repeat(1024))), 400, 'MESSAGE_TOO_LARGE');
    await expectError(await fetch(`${url}/broken`), 500, 'other');
    expect(await (await post('{"a":1}')).json()).toEqual({ a: 1 });
  });

  it('answers what is no HTTP request in the same form, and ends the connection', async () => {
    const { port } = await create().listen(0);
    const tooLong = `GET /hello HTTP/1.1\r\nhunter2: ${'x'.repeat(16 * 1024)}\r\n\r\n`;
    for (const text of ['\u0016\u0003\u0001 hunter2', 'GET /hello HTTP/1.1\r\nhunter2\r\n\r\n', tooLong]) {
      const socket = connect(port, '127.0.0.1');
      socket.write(text);
      let answer = '';
      for await (const part of socket) answer += String(part);
      const [head = '', body = ''] = answer.split('\r\n\r\n');
      expect(head).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
      expect(JSON.parse(body)).toMatchObject({ code: 'INVALID_REQUEST' });
      expect(answer).not.toContain('hunter2');
    }
  });

  // promise: A hundred connections to a port on loopback that send nothing, or half a request, are dropped; others are served.
  it('drops connections that send nothing or half a request, and serves the others', async () => {
    const { port } = await create().listen(0);
    const sockets = Array.from({ length: 100 }, (_, index) => {
      const socket = connect(port, '127.0.0.1');
      if (index % 2 === 0) socket.write('GET /hello HTTP/1.1\r\nx: ');
      return socket.on('error', () => undefined).resume();
    });
    const dropped = Promise.all(sockets.map((socket) => once(socket, 'close')));
    expect((await send(port, { host: `127.0.0.1:${port}` })).status).toBe(200);
    await dropped;
  });

  it('takes nothing new while it closes, in the same form', async () => {
    const server = create();
    let finish = (_: object): void => undefined;
    let arrived = (): void => undefined;
    const running = new Promise<void>((resolve) => (arrived = resolve));
    server.app.get('/slow', () => {
      arrived();
      return new Promise((resolve) => (finish = resolve));
    });
    server.app.addHook('onSend', (request, _reply, _payload, done) => {
      if (request.url === '/hello') finish({ done: true });
      done();
    });
    const { port } = await server.listen(0);
    const socket = connect(port, '127.0.0.1');
    const get = (path: string) => socket.write(`GET ${path} HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\n\r\n`);
    get('/slow');
    await running;
    const closed = server.close(10_000);
    get('/hello');
    let answer = '';
    for await (const part of socket) answer += String(part);
    await closed;
    expect(answer).toContain('{"done":true}');
    expect(answer).toContain('"UNAVAILABLE"');
  });

  it('cuts off a request that does not end when the grace is over', async () => {
    const server = create();
    let arrived = (): void => undefined;
    const running = new Promise<void>((resolve) => (arrived = resolve));
    server.app.get('/endless', (_request, reply) => {
      reply.hijack();
      arrived();
    });
    const { url } = await server.listen(0);
    const outcome = fetch(`${url}/endless`).then(
      () => 'answered',
      () => 'cut off',
    );
    await running;
    await server.close(10);
    expect(await outcome).toBe('cut off');
  });
});
