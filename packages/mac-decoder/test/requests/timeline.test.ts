import { expect, test } from 'vitest';
import { ProgressMeter, type RequestProgress } from '../../src/requests/progress.js';
import { MOMENTS, Timeline } from '../../src/requests/timeline.js';

test('moments are shown in their order, in milliseconds since receipt, without those not reached', () => {
  let now = 1_000;
  const timeline = new Timeline(() => now);
  now = 1_005.128;
  timeline.mark('done');
  timeline.mark('placed', 1_002);
  expect(JSON.stringify(timeline)).toBe('{"received":0,"placed":2,"done":5.13}');
  expect(Object.keys(timeline.toJSON())).toEqual(MOMENTS.filter((m) => ['received', 'placed', 'done'].includes(m)));
});

test('markFirst keeps the first time, mark the last', () => {
  const timeline = new Timeline(() => 0);
  timeline.markFirst('firstByte', 1);
  timeline.markFirst('firstByte', 2);
  timeline.mark('lastByte', 1);
  timeline.mark('lastByte', 2);
  expect(timeline.toJSON()).toMatchObject({ firstByte: 1, lastByte: 2 });
});

test('the rate is that of the phase so far', () => {
  let now = 0;
  const seen: RequestProgress[] = [];
  const meter = new ProgressMeter(
    () => now,
    (progress) => seen.push(progress),
  );
  meter.report('remote', 'prefill', 100, 1_000);
  now = 500;
  meter.report('remote', 'prefill', 600, 1_000);
  meter.report('local', 'prefill', 600, 1_000);
  expect(seen.map((progress) => progress.tokensPerSecond)).toEqual([0, 1_000, 0]);
});
