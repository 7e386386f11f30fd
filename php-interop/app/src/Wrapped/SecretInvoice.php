<?php

namespace App\Wrapped;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;

class SecretInvoice extends Invoice implements ShouldBeEncrypted {}
