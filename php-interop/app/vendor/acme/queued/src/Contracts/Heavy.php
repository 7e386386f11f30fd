<?php

namespace Acme\Queued\Contracts;

use Illuminate\Contracts\Queue\ShouldQueue;

interface Heavy extends ShouldQueue
{
}
